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
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// atOnce is how long what needs no migrating may take, on a busy machine.
const atOnce = time.Minute

// migrateWith is migrate for a migration that is not like others.
func (c *cluster) migrateWith(t *testing.T, name string, resource schema.GroupVersionResource, change func(*v1alpha1.StorageVersionMigration)) *v1alpha1.StorageVersionMigration {
	t.Helper()
	m := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Spec.Resource = v1alpha1.GroupVersionResource{Group: resource.Group, Version: resource.Version, Resource: resource.Resource}
	change(m)
	m, err := c.Migration.MigrationV1alpha1().StorageVersionMigrations().Create(t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// fetch reads a migration.
func (c *cluster) fetch(ctx context.Context, name string) (*v1alpha1.StorageVersionMigration, error) {
	return c.Migration.MigrationV1alpha1().StorageVersionMigrations().Get(ctx, name, metav1.GetOptions{})
}

// processed waits until so many objects of a migration have an outcome on record, while it has not ended.
func (c *cluster) processed(t *testing.T, name string, atLeast int64) *v1alpha1.StorageVersionMigration {
	t.Helper()
	var m *v1alpha1.StorageVersionMigration
	framework.Eventually(t, soon, func(ctx context.Context) (err error) {
		if m, err = c.fetch(ctx, name); err != nil {
			return err
		}
		if m.Status.Progress == nil || m.Status.Progress.Processed < atLeast {
			return fmt.Errorf("%s has not got to %d objects", words(m), atLeast)
		}
		return nil
	})
	if condition(m, v1alpha1.MigrationSucceeded) != nil || condition(m, v1alpha1.MigrationFailed) != nil {
		t.Fatalf("%s has ended too early for this test", words(m))
	}
	return m
}

// at is a client for objects of a definition at a version.
func (c *cluster) at(r custom, version string) dynamic.ResourceInterface {
	return c.Dynamic.Resource(r.WithVersion(version)).Namespace(metav1.NamespaceDefault)
}

// encoding is the group version that the definition calls so.
func (r custom) encoding(version string) string {
	return r.WithVersion(version).GroupVersion().String()
}

// schemas changes the schema of all versions of a definition.
func schemas(change func(*apiextensionsv1.JSONSchemaProps)) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			change(d.Spec.Versions[i].Schema.OpenAPIV3Schema)
		}
	}
}

// progress complains if the counters of a migration are not these.
func progress(t *testing.T, m *v1alpha1.StorageVersionMigration, want v1alpha1.MigrationProgress) {
	t.Helper()
	got := m.Status.Progress
	if got == nil {
		t.Errorf("%s has no counters", words(m))
		return
	}
	if got.Rewritten != want.Rewritten || got.AlreadyCurrent != want.AlreadyCurrent || got.WrittenByOthers != want.WrittenByOthers || got.Gone != want.Gone || got.Denied != want.Denied {
		t.Errorf("%s does not count %+v", words(m), want)
	}
}

// tries are the patches that the manager sent about each object of a resource since a time, in order: each is named by
// the subresource it went to, which is empty for none.
func (c *cluster) tries(t *testing.T, resource schema.GroupResource, since time.Time) map[string][]string {
	t.Helper()
	tries := map[string][]string{}
	_, err := c.Requests(controlplane.RequestFilter{
		Since: since, Users: []string{framework.ManagerUser}, Verbs: []string{"patch"}, Resources: []schema.GroupResource{resource},
		Match: func(event *auditv1.Event) bool {
			tries[event.ObjectRef.Name] = append(tries[event.ObjectRef.Name], event.ObjectRef.Subresource)
			return true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tries
}

// said waits until there are so many events of a reason about a migration, and wants that each says one of the things.
func (c *cluster) said(t *testing.T, migration, reason string, n int, oneOf ...string) {
	t.Helper()
	framework.Eventually(t, atOnce, func(ctx context.Context) error {
		events, err := c.Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + migration + ",reason=" + reason})
		if err != nil {
			return err
		}
		if len(events.Items) != n {
			return fmt.Errorf("there are %d events %s of %s, want %d", len(events.Items), reason, migration, n)
		}
		var errs []error
		for _, part := range oneOf {
			found := false
			for i := range events.Items {
				found = found || strings.Contains(events.Items[i].Message, part)
			}
			if !found {
				errs = append(errs, fmt.Errorf("no event %s of %s says %q", reason, migration, part))
			}
		}
		return errors.Join(errs...)
	})
}
