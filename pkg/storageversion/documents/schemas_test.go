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
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

func TestNarrowedFields(t *testing.T) {
	definition := func(properties string) *apiextensionsv1.CustomResourceDefinition {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal([]byte(`spec: {versions: [{name: v1, storage: true`+properties+`}]}`), crd); err != nil {
			t.Fatal(err)
		}
		return crd
	}
	const schema = `, schema: {openAPIV3Schema: {type: object, `
	both, one := schema+`properties: {a: {type: string}, b: {type: string}}}}`, schema+`properties: {a: {type: string}}}}`
	open := schema + `x-kubernetes-preserve-unknown-fields: true}}`
	for _, test := range []struct {
		name, from, to string
		want           []string
	}{
		{"a field is removed", both, one, []string{".b"}},
		{"a field is added", one, both, nil},
		{"unknown fields are not kept any more", open, one, []string{".*"}},
		{"there was no schema", "", one, []string{".*"}},
		{"unknown fields are kept now", one, open, nil},
		{"there is no schema any more", one, "", nil},
		{"fields are named, and others kept", open, schema + `x-kubernetes-preserve-unknown-fields: true, properties: {
			metadata: {type: object}, kind: {type: string}, spec: {x-kubernetes-preserve-unknown-fields: true}}}}`, nil},
		{"null is not allowed any more", schema + `properties: {a: {type: string, nullable: true}}}}`, one, nil},
	} {
		if got := NarrowedFields(definition(test.from), definition(test.to))["v1"]; !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestLostFields(t *testing.T) {
	const definition = `
spec:
  versions:
  - name: v2
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {
      same: {type: string},
      map: {type: object, additionalProperties: {type: string}},
      open: {type: object, x-kubernetes-preserve-unknown-fields: true},
      closed: {type: object, properties: {a: {type: string}}},
      maps: {type: object, additionalProperties: {type: object, properties: {a: {type: string}}}},
      list: {type: array, items: {type: object, properties: {a: {type: string}}}}}}}
  - name: v1
    schema: {openAPIV3Schema: {type: object, properties: {
      metadata: {type: object}, kind: {type: string},
      same: {type: string}, password: {type: string},
      map: {type: object, properties: {x: {type: string}}},
      open: {type: object, properties: {x: {type: string}}},
      closed: {type: object, additionalProperties: {type: string}},
      maps: {type: object, x-kubernetes-preserve-unknown-fields: true},
      list: {type: array, items: {type: object, properties: {a: {type: string}, b: {type: string}}}}}}}
`
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(definition), crd); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"v1": {".closed.*", ".list[].b", ".maps.*", ".password"}, "v2": nil}
	if diff := cmp.Diff(want, LostFields(crd)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
	if lost := LostFields(crd); len(lost) > 0 {
		t.Errorf("with a webhook that converts: %v", lost)
	}
}

// TestSchemasThatTakeLongToCompare has definitions in which each field of one version has to be compared with each
// field of the other. Whoever may create definitions can write them.
func TestSchemasThatTakeLongToCompare(t *testing.T) {
	const open = "x-kubernetes-preserve-unknown-fields: true"
	properties := func(prefix, field string) string {
		var all []string
		for i := range 3000 {
			all = append(all, fmt.Sprintf("%s%d: %s", prefix, i, field))
		}
		return "properties: {" + strings.Join(all, ", ") + "}"
	}
	for name, test := range map[string]struct {
		from, to string
		want     []string
	}{
		"nothing is lost": {
			from: "{type: object, " + properties("p", "{type: string}") + "}",
			to:   "{type: object, additionalProperties: {" + open + ", " + properties("q", "{type: string}") + "}}",
		},
		"it cannot be said in time": {
			from: "{type: object, " + properties("p", "{type: object, additionalProperties: {type: string}}") + "}",
			to:   "{type: object, additionalProperties: {" + open + ", " + properties("q", "{type: string}") + "}}",
			want: []string{".*"},
		},
		"nor where fields are only looked up": {
			from: "{type: object, additionalProperties: {" + properties("p", "{type: string}") + "}}",
			to:   "{type: object, " + open + ", " + properties("q", "{"+open+"}") + "}",
			want: []string{".*"},
		},
	} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		definition := fmt.Sprintf(`spec: {versions: [
			{name: v1, schema: {openAPIV3Schema: {type: object, properties: {x: %s}}}},
			{name: v2, storage: true, schema: {openAPIV3Schema: {type: object, properties: {x: %s}}}}]}`, test.from, test.to)
		if err := yaml.Unmarshal([]byte(definition), crd); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, LostFields(crd)["v1"]); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	definition := fmt.Sprintf(`spec: {versions: [{name: v1, schema: {openAPIV3Schema: {type: object, %s}}},
		{name: v2, storage: true, schema: {openAPIV3Schema: {type: object}}}]}`, properties("p", "{type: string}"))
	if err := yaml.Unmarshal([]byte(definition), crd); err != nil {
		t.Fatal(err)
	}
	if lost := LostFields(crd)["v1"]; len(lost) != maxLost {
		t.Errorf("%d fields are named, want %d", len(lost), maxLost)
	}
}

// TestLostByShape has fields that both versions have, of which the storage version keeps less.
func TestLostByShape(t *testing.T) {
	for _, test := range []struct {
		name, v1, v2, object, want string
		lost                       []string
	}{
		{"unknown fields are kept, but not in a known one",
			"{type: object, properties: {a: {type: string}, b: {type: string}}}",
			"{type: object, properties: {a: {type: string}}}",
			`{"a":"1","b":"2"}`, `{"a":"1"}`, []string{".x.b"}},
		{"a field that keeps what it does not know",
			"{type: object, properties: {a: {type: string}}}", "{type: object, x-kubernetes-preserve-unknown-fields: true}",
			`{"a":"1"}`, `{"a":"1"}`, nil},
		{"an object of its own",
			"{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}",
			"{type: object, properties: {data: {type: string}}}",
			`{"apiVersion":"v1","kind":"K","data":"1"}`, `{"data":"1"}`, []string{".x"}},
		{"any fields of strings", "{type: object, additionalProperties: {type: object, properties: {a: {type: string}}}}",
			"{type: object, additionalProperties: true}", `{"k":{"a":"1"}}`, `{"k":{}}`, []string{".x.*.a"}},
		{"null", "{type: integer, nullable: true}", "{type: integer, default: 5}", `null`, `5`, []string{".x"}},
		{"items of a list that is none any more", "{type: array, items: {type: object, properties: {a: {type: string}}}}",
			"{x-kubernetes-int-or-string: true}", `[{"a":"1"}]`, `[{}]`, []string{".x[].a"}},
		{"unknown fields in unknown ones", "{type: object, x-kubernetes-preserve-unknown-fields: true}",
			"{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: object, nullable: true, " +
				"x-kubernetes-preserve-unknown-fields: true, properties: {b: {type: object, nullable: true}}}}}",
			`{"a":{"b":{"c":"1"}}}`, `{"a":{"b":{}}}`, []string{".x.a.b.*"}},
		{"unknown fields of a map", "{type: object, x-kubernetes-preserve-unknown-fields: true}",
			"{type: object, x-kubernetes-preserve-unknown-fields: true, additionalProperties: {type: object, nullable: true}}",
			`{"k":{"a":"1"}}`, `{"k":{}}`, []string{".x.*.*"}},
		{"unknown items", "{x-kubernetes-preserve-unknown-fields: true}", "{type: array, " +
			"x-kubernetes-preserve-unknown-fields: true, items: {nullable: true, type: object, properties: " +
			"{a: {type: object, nullable: true}}}}", `[{"a":{"b":"1"}}]`, `[{"a":{}}]`, []string{".x[].*"}},
		{"a map that has a known field",
			"{type: object, additionalProperties: {type: object, properties: {a: {type: string}}}}",
			"{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {k: {type: object}}}",
			`{"k":{"a":"1"}}`, `{"k":{}}`, []string{".x.k.a"}},
		{"null in a map", "{type: object, additionalProperties: true}",
			"{type: object, additionalProperties: {type: string}}", `{"k":null}`, `{}`, []string{".x.*"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			const definition = `{"spec":{"versions":[
				{"name":"v1","served":true,"schema":{"openAPIV3Schema":{"type":"object",
					"x-kubernetes-preserve-unknown-fields":true,"properties":{"x":%s}}}},
				{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
					"x-kubernetes-preserve-unknown-fields":true,"properties":{"x":%s}}}}]}}`
			if err := yaml.Unmarshal(fmt.Appendf(nil, definition, test.v1, test.v2), crd); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.lost, LostFields(crd)["v1"]); diff != "" {
				t.Errorf("lost: -want +got:\n%s", diff)
			}
			read := func(text string) (object map[string]any) {
				if err := utiljson.Unmarshal([]byte(`{"apiVersion":"e/v1","kind":"E","metadata":{"name":"e"},"x":`+text+`}`),
					&object); err != nil {
					t.Fatal(err)
				}
				return object
			}
			if diff := cmp.Diff(read(test.want), schemasOf(crd).AfterWrite(read(test.object), "v1")); diff != "" {
				t.Errorf("after a write: -want +got:\n%s", diff)
			}
		})
	}
}

// TestAddedDefaults has a storage version with more defaults than the other version.
func TestAddedDefaults(t *testing.T) {
	const definition = `{"spec":{"versions":[
		{"name":"v1","served":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"list":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string","default":"x"}}}}}}}},
		{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"list":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string","default":%q}}}}}}}}]}}`
	for value, want := range map[string]bool{"x": false, "y": true} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(fmt.Appendf(nil, definition, value), crd); err != nil {
			t.Fatal(err)
		}
		if got := schemasOf(crd).AddsDefaults; got != want {
			t.Errorf("with the default %q of v2 AddsDefaults is %v", value, got)
		}
	}
	// A default also takes the place of null, unless null is allowed.
	for spec, want := range map[string]bool{`"default":"x"`: true, `"default":"x","nullable":true`: false} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal([]byte(`{"spec":{"versions":[
			{"name":"v1","schema":{"openAPIV3Schema":{"type":"object","properties":{
				"a":{"type":"string","nullable":true,"default":"x"}}}}},
			{"name":"v2","storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
				"a":{"type":"string",`+spec+`}}}}}]}}`), crd); err != nil {
			t.Fatal(err)
		}
		if got := schemasOf(crd).AddsDefaults; got != want {
			t.Errorf("where v2 says %s AddsDefaults is %v", spec, got)
		}
	}
	// At another version only the webhook knows what comes back.
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, definition, "y"), crd); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
	for version, want := range map[string]string{"v1": `[{}]`, "v2": `[{"a":"y"}]`} {
		var object map[string]any
		if err := utiljson.Unmarshal([]byte(`{"list":[{}]}`), &object); err != nil {
			t.Fatal(err)
		}
		got, err := utiljson.Marshal(schemasOf(crd).AfterWrite(object, version)["list"])
		if err != nil || string(got) != want {
			t.Errorf("after a write clients of %s read %s, error %v", version, got, err)
		}
	}
}
