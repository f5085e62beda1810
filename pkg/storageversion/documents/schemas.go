/*
Copyright The svm-controller-manager Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package documents

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Schemas are the schemas of the versions of a custom resource. By these, API servers change what they read and store:
//
//   - To an object that is read from etcd they add the defaults of the version in which it is stored.
//   - When they convert an object to another version, they drop the fields that this version lacks.
//
// So an object that is stored in another version than before may look different, although its rewrite changed nothing.
type Schemas struct {
	// UID and Generation are those of the definition.
	UID        types.UID
	Generation int64
	// Storage is the storage version. Defined are all versions, served or not.
	Storage       string
	StorageServed bool
	Defined       []string
	// Webhook means that a webhook converts the objects. Nobody else knows what it keeps.
	Webhook bool
	// byVersion has the schemas of all versions. A version without a schema drops nothing.
	byVersion map[string]*structuralschema.Structural
	// Others are the served versions but the storage version. There are none if a webhook converts the objects.
	Others []string
	// Lossy are those of Others that have fields which the storage version lacks.
	Lossy []string
	// AddsDefaults means that the storage version has defaults that another version lacks.
	AddsDefaults bool
}

// Schemas reads the schemas of a custom resource.
func (r Reader) Schemas(ctx context.Context, resource schema.GroupResource) (*Schemas, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := r.decodeJSON(ctx, DefinitionPath(resource), definitionKind, crd); err != nil {
		return nil, err
	}
	return schemasOf(crd), nil
}

func schemasOf(crd *apiextensionsv1.CustomResourceDefinition) *Schemas {
	s := &Schemas{UID: crd.UID, Generation: crd.Generation, Webhook: convertedByWebhook(crd),
		byVersion: map[string]*structuralschema.Structural{}}
	for _, v := range crd.Spec.Versions {
		s.Defined = append(s.Defined, v.Name)
		if v.Storage {
			s.Storage, s.StorageServed = v.Name, v.Served
		}
		s.byVersion[v.Name] = structural(crd, v)
	}
	lost := LostFields(crd)
	for _, v := range crd.Spec.Versions {
		if v.Name == s.Storage {
			continue
		}
		if v.Served && !s.Webhook {
			s.Others = append(s.Others, v.Name)
			if len(lost[v.Name]) > 0 {
				s.Lossy = append(s.Lossy, v.Name)
			}
		}
		s.AddsDefaults = s.AddsDefaults || hasOtherDefaults(s.byVersion[s.Storage], s.byVersion[v.Name])
	}
	return s
}

func convertedByWebhook(crd *apiextensionsv1.CustomResourceDefinition) bool {
	conversion := crd.Spec.Conversion
	return conversion != nil && conversion.Strategy == apiextensionsv1.WebhookConverter
}

// structural returns the schema of a version as API servers use it, or nil if they do not use it.
func structural(
	crd *apiextensionsv1.CustomResourceDefinition, v apiextensionsv1.CustomResourceDefinitionVersion,
) *structuralschema.Structural {
	if crd.Spec.PreserveUnknownFields || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return nil
	}
	props := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		v.Schema.OpenAPIV3Schema, props, nil); err != nil {
		return nil
	}
	found, err := structuralschema.NewStructural(props)
	if err != nil {
		return nil // Of a definition from before apiextensions.k8s.io/v1, which drops nothing.
	}
	return found
}

// hasOtherDefaults reports whether a schema adds a default that another schema does not add: the other one has no such
// default, or it allows null and so does not replace null by the default.
func hasOtherDefaults(schema, other *structuralschema.Structural) bool {
	if schema == nil {
		return false
	}
	if other == nil {
		other = &structuralschema.Structural{}
	}
	if schema.Default.Object != nil && (other.Nullable && !schema.Nullable ||
		!equality.Semantic.DeepEqual(schema.Default.Object, other.Default.Object)) {
		return true
	}
	for name, field := range schema.Properties {
		if same := other.Properties[name]; hasOtherDefaults(&field, &same) {
			return true
		}
	}
	if schema.AdditionalProperties == nil {
		return hasOtherDefaults(schema.Items, other.Items)
	}
	var same *structuralschema.Structural
	if other.AdditionalProperties != nil {
		same = other.AdditionalProperties.Structural
	}
	return hasOtherDefaults(schema.AdditionalProperties.Structural, same)
}

// Convert returns an object as API servers convert it to another version, but for its apiVersion.
func (s *Schemas) Convert(object map[string]any, to string) map[string]any {
	converted := runtime.DeepCopyJSON(object)
	if at := s.byVersion[to]; at != nil {
		pruning.Prune(converted, at, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(converted, at)
		_ = objectmeta.Coerce(nil, converted, at, false, true) // It drops what is not valid, and so has no errors.
	}
	return converted
}

// AfterWrite returns how clients of a version will read an object when it is stored anew. object is how they read it
// before.
func (s *Schemas) AfterWrite(object map[string]any, version string) map[string]any {
	switch {
	case version == s.Storage:
		after := runtime.DeepCopyJSON(object)
		defaulting.Default(after, s.byVersion[version])
		return after
	case s.Webhook:
		return object // as far as is known
	}
	stored := s.Convert(object, s.Storage)
	defaulting.Default(stored, s.byVersion[s.Storage])
	return s.Convert(stored, version)
}

// LostFields returns the fields of each version of a definition that API servers may drop or change when they store an
// object in the storage version, at most maxLost of each. If a webhook converts the objects, it returns none, because
// the webhook may keep them.
func LostFields(crd *apiextensionsv1.CustomResourceDefinition) map[string][]string {
	all := map[string][]string{}
	versions := crd.Spec.Versions
	stored := slices.IndexFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if stored < 0 || convertedByWebhook(crd) {
		return all
	}
	to := structural(crd, versions[stored])
	if to == nil {
		return all
	}
	to.XEmbeddedResource = true // The root has apiVersion, kind and metadata, whether the schema says so or not.
	for _, v := range versions {
		if from := structural(crd, v); from != nil {
			from.XEmbeddedResource = true
			all[v.Name] = lost(from, to)
		}
	}
	return all
}

// NarrowedFields returns the fields of each version of a definition that the schema of the same version in another
// definition drops. API servers do so when they read an object from etcd, before anybody converts it. That null may not
// be a value any more does not count.
func NarrowedFields(from, to *apiextensionsv1.CustomResourceDefinition) map[string][]string {
	all := map[string][]string{}
	for _, before := range from.Spec.Versions {
		for _, after := range to.Spec.Versions {
			schema := structural(to, after)
			if before.Name != after.Name || schema == nil {
				continue
			}
			was := cmp.Or(structural(from, before), anything).DeepCopy()
			was.XEmbeddedResource, schema.XEmbeddedResource = true, true
			nullable := structuralschema.Visitor{Structural: func(s *structuralschema.Structural) bool {
				s.Nullable = true
				return true
			}}
			nullable.Visit(schema)
			all[before.Name] = lost(was, schema)
		}
	}
	return all
}

const (
	// maxLost is how many paths are worth reading.
	maxLost = 100
	// maxPath is how many bytes of a path are worth reading.
	maxPath = 256
	// maxCompared bounds a comparison. Large schemas have some ten thousand fields. But whoever may create a definition
	// can write two schemas in which each field of one has to be compared with each field of the other.
	maxCompared = 1_000_000
)

// lost returns the paths of what the schema from allows, and the schema to may drop or change. What it does not compare
// any more, because there is too much of it, counts as lost.
func lost(from, to *structuralschema.Structural) []string {
	c := &comparison{left: maxCompared}
	c.compare(from, to, nil)
	if c.left < 0 && len(c.lost) < maxLost {
		return append(c.lost, ".*")
	}
	return c.lost
}

// comparison is of two schemas.
type comparison struct {
	lost []string
	left int // how many more fields may be compared
}

// steps lead to a value. Only those to a value that is lost become a text: a schema may be thousands of fields deep.
type steps struct {
	before *steps
	last   string
}

func (s *steps) then(step string) *steps { return &steps{s, step} }

// found notes that the value there may be lost.
func (c *comparison) found(at *steps) {
	var all []string
	for ; at != nil; at = at.before {
		all = append(all, at.last)
	}
	slices.Reverse(all)
	path := strings.Join(all, "")
	c.lost = append(c.lost, strings.ToValidUTF8(path[:min(len(path), maxPath)], ""))
}

func (c *comparison) ends() bool { return c.left < 0 || len(c.lost) >= maxLost }

// compare compares the schemas of a value.
func (c *comparison) compare(from, to *structuralschema.Structural, at *steps) {
	if c.ends() {
		return
	}
	bare := &structuralschema.Structural{Generic: structuralschema.Generic{Nullable: true}}
	from, to = cmp.Or(from, bare), cmp.Or(to, bare) // Without a schema, a value has nothing in it.
	c.left -= 1 + len(from.Properties)
	if from.Nullable && !to.Nullable || from.XEmbeddedResource != to.XEmbeddedResource {
		c.found(at)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(from.Properties)) {
		if c.ends() {
			return
		}
		if from.XEmbeddedResource && slices.Contains(ofEveryObject, name) {
			continue
		}
		field := from.Properties[name]
		if same, has := to.Properties[name]; has {
			c.compare(&field, &same, at.then("."+name))
		} else if to.AdditionalProperties != nil {
			c.compare(&field, to.AdditionalProperties.Structural, at.then("."+name))
		} else if !to.XPreserveUnknownFields {
			c.found(at.then("." + name))
		}
	}
	if from.Items != nil && (to.Items != nil || !to.XPreserveUnknownFields) {
		c.compare(from.Items, to.Items, at.then("[]"))
	}
	c.compareUnnamed(from, to, at)
}

// ofEveryObject are fields that each object keeps, whatever its schema says.
var ofEveryObject = []string{"apiVersion", "kind", "metadata"}

// anything is the schema of a value that no schema describes.
var anything = &structuralschema.Structural{
	Generic:    structuralschema.Generic{Nullable: true},
	Extensions: structuralschema.Extensions{XPreserveUnknownFields: true},
}

// compareUnnamed is compare for the fields that a schema allows without naming them.
func (c *comparison) compareUnnamed(from, to *structuralschema.Structural, at *steps) {
	unnamed := anything
	switch {
	case from.AdditionalProperties != nil:
		unnamed = from.AdditionalProperties.Structural
	case !from.XPreserveUnknownFields:
		return
	}
	if to.AdditionalProperties == nil && !to.XPreserveUnknownFields {
		c.found(at.then(".*"))
		return
	}
	c.left -= len(to.Properties)
	for _, name := range slices.Sorted(maps.Keys(to.Properties)) {
		if c.ends() {
			return
		}
		if from.XEmbeddedResource && slices.Contains(ofEveryObject, name) {
			continue
		}
		if _, named := from.Properties[name]; !named {
			field := to.Properties[name]
			c.compare(unnamed, &field, at.then("."+name))
		}
	}
	if to.AdditionalProperties != nil {
		c.compare(unnamed, to.AdditionalProperties.Structural, at.then(".*"))
	}
	if from.Items == nil && to.Items != nil { // The value may be a list.
		c.compare(unnamed, to.Items, at.then("[]"))
	}
}
