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
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// atOnce is how long what needs no migrating may take, on a busy machine.
const atOnce = 3 * time.Minute

// migrateWith is migrate for a migration that is not like others.
func (c *cluster) migrateWith(
	t *testing.T, name string, resource schema.GroupVersionResource, change func(*v1alpha1.StorageVersionMigration),
) *v1alpha1.StorageVersionMigration {
	t.Helper()
	m := newMigration(name, resource)
	change(m)
	m, err := c.Migrations().Create(t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// fetch reads a migration.
func (c *cluster) fetch(ctx context.Context, name string) (*v1alpha1.StorageVersionMigration, error) {
	return c.Migrations().Get(ctx, name, metav1.GetOptions{})
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

// tryPatch asks the API server whether it would patch an object at v1, by way of a subresource or none.
func (c *cluster) tryPatch(ctx context.Context, r custom, name string, patch []byte, subresource ...string) error {
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := c.at(r, "v1").Patch(ctx, name, types.MergePatchType, patch, dry, subresource...)
	return err
}

// ask has the API server ask a webhook about every update of objects of a definition, by whatever way.
func (c *cluster) ask(t *testing.T, hook *webhook.Hook, r custom) {
	t.Helper()
	rule := r.updates(r.Resource, r.Resource+"/status")
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: r.Resource},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{hook.ValidatingWebhook(r.String(), rule)},
	}
	configurations := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// updates are updates of objects by these ways: the resource, a subresource of it.
func (r custom) updates(ways ...string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{r.Group}, APIVersions: []string{"*"}, Resources: ways,
		},
	}
}

// convertedBy has a webhook convert objects of a definition.
func convertedBy(hook *webhook.Hook) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Conversion = hook.CustomResourceConversion() }
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

// progress complains if the counters of a migration are not these. A rewrite whose answer was lost counts as one: see
// rewroteAll.
func progress(t *testing.T, m *v1alpha1.StorageVersionMigration, want v1alpha1.MigrationProgress) {
	t.Helper()
	got := m.Status.Progress
	if got == nil {
		t.Errorf("%s has no counters", words(m))
		return
	}
	counted := *got
	if lost := got.WrittenByOthers - want.WrittenByOthers; lost > 0 && lost <= got.Retried {
		counted.Rewritten += lost
		counted.WrittenByOthers -= lost
	}
	outcomes := func(p *v1alpha1.MigrationProgress) []int64 {
		return []int64{p.Rewritten, p.AlreadyCurrent, p.WrittenByOthers, p.Gone, p.Denied}
	}
	if !slices.Equal(outcomes(&counted), outcomes(&want)) {
		t.Errorf("%s does not count %+v", words(m), want)
	}
}

// rewroteAll complains unless a migration has rewritten that many objects and found no others. If the answer
// to a rewrite is lost, as on a busy machine, the next try finds that somebody has written the object.
func rewroteAll(t *testing.T, m *v1alpha1.StorageVersionMigration, objects int64) {
	t.Helper()
	p := m.Status.Progress
	if p == nil || p.Processed != objects || p.Rewritten+p.WrittenByOthers != objects || p.WrittenByOthers > p.Retried {
		t.Errorf("%s has not rewritten %d objects", words(m), objects)
	}
}

// tries are the patches that the manager sent about each object of a resource since a time, in order: each is named by
// the subresource it went to, which is empty for none. A patch that was not answered, or with a failure of the server,
// is left out, but not its object: the manager has to send it again.
func (c *cluster) tries(t *testing.T, resource schema.GroupResource, since time.Time) map[string][]string {
	t.Helper()
	tries := map[string][]string{}
	filter := patchesOfManager(resource, since)
	filter.Match = func(event *auditv1.Event) bool {
		if rehearsed(event) {
			return false
		}
		ways := tries[event.ObjectRef.Name]
		if answer := event.ResponseStatus; answer != nil && answer.Code < http.StatusInternalServerError {
			ways = append(ways, event.ObjectRef.Subresource)
		}
		tries[event.ObjectRef.Name] = ways
		return true
	}
	if _, err := c.Requests(filter); err != nil {
		t.Fatal(err)
	}
	return tries
}

// patchesOfManager are the PATCH requests for objects of a resource that servers received from the manager since then.
// Dry runs count if they fail, because then nothing else is tried.
func patchesOfManager(resource schema.GroupResource, since time.Time) controlplane.RequestFilter {
	return controlplane.RequestFilter{
		Since:     since,
		Users:     []string{framework.ManagerUser},
		Verbs:     []string{"patch"},
		Resources: []schema.GroupResource{resource},
		Match:     func(event *auditv1.Event) bool { return !rehearsed(event) },
	}
}

// rehearsed reports whether the request was a dry run that succeeded.
func rehearsed(event *auditv1.Event) bool {
	failed := event.ResponseStatus != nil && event.ResponseStatus.Code >= http.StatusBadRequest
	return strings.Contains(event.RequestURI, "dryRun=All") && !failed
}

// said waits until there are so many events of a reason about a migration, and wants that each says one of the things.
func (c *cluster) said(t *testing.T, migration, reason string, n int, oneOf ...string) {
	t.Helper()
	framework.Eventually(t, atOnce, func(ctx context.Context) error {
		events, err := c.Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + migration + ",reason=" + reason,
		})
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
