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

package svmigrator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// longSettle is a settle period within which also a busy API server follows a schema, or withdraws a version.
const longSettle = 10 * time.Second

// defineClocks creates a definition whose versions have these fields in their spec. The field era has a default.
func (c *cluster) defineClocks(t *testing.T, r custom, v1, v2 []string) {
	t.Helper()
	c.define(t, r, func(d *apiextensionsv1.CustomResourceDefinition) {
		for i, names := range [][]string{v1, v2} {
			spec := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
			for _, name := range names {
				field := apiextensionsv1.JSONSchemaProps{Type: "string"}
				if name == "era" {
					field.Default = &apiextensionsv1.JSON{Raw: []byte(`"modern"`)}
				}
				spec.Properties[name] = field
			}
			d.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
				},
			}
		}
	})
}

func (c *cluster) createClock(t *testing.T, r custom, version, name string, spec map[string]any) {
	t.Helper()
	clock := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": r.encoding(version), "kind": r.kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if _, err := c.at(r, version).Create(t.Context(), clock, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitWritten waits until the API server writes that version, which it does a moment after the definition says so.
func (c *cluster) awaitWritten(t *testing.T, r custom, version string) {
	t.Helper()
	c.createClock(t, r, "v1", "probe", map[string]any{"maker": "huygens"})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"time":"%x"}}}`, time.Now().UnixNano())
		if _, err := c.objects(r).Patch(ctx, "probe", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
		stored, err := c.Stored(ctx, r.GroupResource)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(stored, func(o controlplane.StoredObject) bool { return o.Name == "probe" })
		if at < 0 || stored[at].Encoding != r.encoding(version) {
			return fmt.Errorf("the API server does not write %s yet", r.encoding(version))
		}
		return nil
	})
	if err := c.objects(r).Delete(t.Context(), "probe", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testOtherVersion wants custom resources to keep a field that the version which a migration names does not have.
func testOtherVersion(t *testing.T, c *cluster) {
	r := newCustom("clocks", "Clock")
	spec := map[string]any{"maker": "huygens", "timezone": "UTC"}
	c.defineClocks(t, r, []string{"maker"}, []string{"maker", "timezone"})
	c.createClock(t, r, "v1", "old", spec)
	c.flip(t, r, "v2")
	c.awaitWritten(t, r, "v2")
	c.createClock(t, r, "v2", "new", spec)
	judge := c.judge(t, r.GroupResource)
	c.startManager(t, "manager", "--settle-period="+longSettle.String())

	c.migrate(t, "by-v1", r.WithVersion("v1"))
	m := c.ended(t, "by-v1", soon)
	mustSucceed(t, m)
	judge.stored(t, r.encoding("v2"))
	judge.onlyEncodings(t, 1)

	c.ChangeDefinition(t, r.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[1].Served = false
	})
	c.migrate(t, "unserved", r.WithVersion(""))
	m = c.ended(t, "unserved", soon)
	mustFail(t, m, v1alpha1.MigrationReasonVersionNotServed, `"v2"`, "lose the fields")
	judge.onlyEncodings(t, 1)
}

// testLostFields has a storage version that lacks fields of another version, which clients still read.
func testLostFields(t *testing.T, c *cluster) {
	dials, gnomons := newCustom("dials", "Dial"), newCustom("gnomons", "Gnomon")
	c.defineClocks(t, dials, []string{"maker", "timezone"}, []string{"maker"})
	c.defineClocks(t, gnomons, []string{"maker", "era"}, []string{"maker"})
	c.createClock(t, dials, "v1", "plain", map[string]any{"maker": "huygens"})
	c.createClock(t, dials, "v1", "zoned", map[string]any{"maker": "huygens", "timezone": "UTC"})
	c.createClock(t, gnomons, "v1", "modern", map[string]any{"maker": "huygens"})
	c.flip(t, dials, "v2")
	c.flip(t, gnomons, "v2")
	judge := c.judge(t, dials.GroupResource)
	c.startManager(t, "manager")

	c.migrate(t, "dials", dials.WithVersion(""))
	m := c.ended(t, "dials", soon)
	mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied)
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: 1, Denied: 1})
	if message := m.Status.DeniedObjects[0].Message; !strings.HasPrefix(message,
		"rewriting default/zoned would drop .spec.timezone for clients of version v1. ") {
		t.Errorf("the status says %q", message)
	}
	judge.stored(t, dials.encoding("v2"), "zoned")
	judge.onlyEncodings(t, 1)

	// All objects have the default, and a write drops it for clients of v1.
	c.migrate(t, "gnomons", gnomons.WithVersion(""))
	m = c.ended(t, "gnomons", soon)
	mustFail(t, m, v1alpha1.MigrationReasonRewritesChangeObjects, "default/modern", ".spec.era")
	if _, err := c.at(gnomons, "v2").Patch(t.Context(), "modern", types.MergePatchType, []byte(`{}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	modern, err := c.at(gnomons, "v1").Get(t.Context(), "modern", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if era, shown, _ := unstructured.NestedString(modern.Object, "spec", "era"); shown {
		t.Errorf("after a write clients of v1 still read .spec.era %q", era)
	}

	c.ChangeDefinition(t, dials.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].Served = false
	})
	c.migrate(t, "nobody-reads-v1", dials.WithVersion(""))
	mustSucceed(t, c.ended(t, "nobody-reads-v1", soon))
	judge.stored(t, dials.encoding("v2"))
}

// testSchemaThatGetsAField follows the advice in the message about a lost field. API servers follow the new schema a
// moment later, and would drop the field until then. Nothing shows that, so the migration waits.
func testSchemaThatGetsAField(t *testing.T, c *cluster) {
	r := newCustom("hourglasses", "Hourglass")
	c.defineClocks(t, r, []string{"maker", "timezone"}, []string{"maker"})
	c.createClock(t, r, "v1", "zoned", map[string]any{"maker": "huygens", "timezone": "UTC"})
	c.createClock(t, r, "v1", "plain", map[string]any{"maker": "huygens"})
	c.flip(t, r, "v2")
	c.startManager(t, "manager", "--settle-period="+longSettle.String())
	c.migrate(t, "denied", r.WithVersion(""))
	mustFail(t, c.ended(t, "denied", soon), v1alpha1.MigrationReasonObjectsDenied)

	changed := time.Now()
	c.ChangeDefinition(t, r.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[1].Schema = d.Spec.Versions[0].Schema
	})
	c.migrate(t, "kept", r.WithVersion(""))
	m := c.ended(t, "kept", soon)
	mustSucceed(t, m)
	if waited := m.Status.StartTime.Sub(changed); waited < longSettle {
		t.Errorf("it started %v after the change, which is less than the settle period", waited)
	}
	zoned, err := c.at(r, "v2").Get(t.Context(), "zoned", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if zone, _, _ := unstructured.NestedString(zoned.Object, "spec", "timezone"); zone != "UTC" {
		t.Errorf("the field is %q", zone)
	}
}

// testAddedDefaults has a storage version with a default that the other version lacks. A write of the resource would
// add it to each object that is stored in the other version.
func testAddedDefaults(t *testing.T, c *cluster) {
	watches, towers := newCustom("watches", "Watch"), newCustom("towers", "Tower")
	for _, r := range []custom{watches, towers} {
		c.defineClocks(t, r, []string{"maker"}, []string{"maker", "era"})
		for i := range 3 {
			c.createClock(t, r, "v1", fmt.Sprintf("old-%d", i), map[string]any{"maker": "huygens"})
		}
	}
	c.ChangeDefinition(t, towers.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			d.Spec.Versions[i].Subresources = nil
		}
	})
	for _, r := range []custom{watches, towers} {
		c.flip(t, r, "v2")
	}
	for _, r := range []custom{watches, towers} {
		c.awaitWritten(t, r, "v2")
		c.createClock(t, r, "v2", "new", map[string]any{"maker": "huygens", "era": "ancient"})
	}
	c.startManager(t, "manager")
	for _, r := range []custom{watches, towers} {
		judge := c.judge(t, r.GroupResource)
		c.migrate(t, r.Resource, r.WithVersion(""))
		m := c.ended(t, r.Resource, soon)
		mustSucceed(t, m)
		progress(t, m, v1alpha1.MigrationProgress{Rewritten: 3, AlreadyCurrent: 1})
		judge.stored(t, r.encoding("v2"))
		judge.onlyEncodings(t, 1)
	}

	// Where nothing else is possible, the message names the reason.
	c.flip(t, towers, "v1")
	c.awaitWritten(t, towers, "v1")
	c.createClock(t, towers, "v1", "stuck", map[string]any{"maker": "huygens"})
	c.flip(t, towers, "v2")
	c.ChangeDefinition(t, towers.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].Served = false
	})
	c.migrate(t, "v1-is-not-served", towers.WithVersion(""))
	m := c.ended(t, "v1-is-not-served", soon)
	mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied,
		"default/stuck", "The storage version has defaults that other versions lack")
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: 3, AlreadyCurrent: 1, Denied: 1})
}
