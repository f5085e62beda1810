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

package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/report"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
	"sigs.k8s.io/yaml"
)

// TestWithoutManager does by hand what a manager does: it asks whether a version may be dropped, migrates, is
// interrupted, goes on, and asks again.
func TestWithoutManager(t *testing.T) {
	t.Parallel()
	c := start(t, controlplane.Server{}, controlplane.EtcdConfig{})
	t.Run("definitions are missing", func(t *testing.T) {
		c.finds(t, notSafe, "", []string{"ERROR MigrationAPIMissing"})
		c.finds(t, notSafe, "kind: ConfigMap", []string{"ERROR MigrationAPIMissing", "WARNING NoDefinitions"}, "--file=-")
		lone := samples.Definition(schema.GroupResource{Group: group, Resource: "lones"}, "Lone", "v1", "v1")
		lone.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}
		text, err := yaml.Marshal(lone)
		if err != nil {
			t.Fatal(err)
		}
		c.finds(t, notSafe, string(text), []string{"ERROR MigrationAPIMissing"}, "--file=-")
		if _, err := c.Definitions().Create(t.Context(), lone, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.finds(t, done, string(text), []string{"WARNING MigrationAPIMissing"}, "--file=-")
		if err := c.Definitions().Delete(t.Context(), lone.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	c.InstallMigrationAPI(t)
	t.Run("a server is away", func(t *testing.T) { testAway(t, c) })
	t.Run("an interrupted run", func(t *testing.T) { testInterrupted(t, c) })
	t.Run("denied objects", func(t *testing.T) { testDenied(t, c) })
	t.Run("a new definition", func(t *testing.T) { testFile(t, c) })
	t.Run("a release", func(t *testing.T) {
		c.finds(t, notSafe, "", []string{"ERROR NoManager", "ERROR NoStorageState"}, "--kubernetes-version=1.36")
		c.finds(t, notSafe, "", []string{"ERROR NoManager", "ERROR NoStorageState"}, "--other-server="+c.AdminConfig.Host)
		c.svm(t.Context(), t, failed, "", "preflight", "--kubernetes-version=latest")
	})
	t.Run("a report", func(t *testing.T) {
		var read report.Report
		text := c.svm(t.Context(), t, done, "", "report", "--etcd-endpoints="+c.Etcd().URL())
		if err := yaml.UnmarshalStrict([]byte(text), &read); err != nil {
			t.Fatal(err)
		}
		if read.Etcd == nil || read.Etcd.Objects == 0 || len(read.Findings) == 0 || len(read.Problems) > 0 {
			t.Errorf("the report has %+v", read)
		}
	})
	t.Run("states are missing", func(t *testing.T) { testMissingStates(t, c) })
}

// finds wants these findings, as level, code and resource.
func (c *cluster) finds(t *testing.T, exit int, in string, want []string, args ...string) {
	t.Helper()
	var answer struct{ Findings preflight.Findings }
	decode(t, c.svm(t.Context(), t, exit, in, append([]string{"preflight", "-o=json"}, args...)...), &answer)
	var got []string
	for _, f := range answer.Findings {
		got = append(got, strings.TrimSpace(string(f.Level)+" "+string(f.Code)+" "+f.Resource))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// testAway registers an aggregated server that does not exist.
func testAway(t *testing.T, c *cluster) {
	away := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1.away.example.com"},
		"spec": map[string]any{
			"group": "away.example.com", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(1),
			"service": map[string]any{"namespace": metav1.NamespaceDefault, "name": "away"}, "insecureSkipTLSVerify": true,
		},
	}}
	services := c.Dynamic.Resource(schema.GroupVersionResource{
		Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
	})
	unlisted := func(want bool) {
		framework.Eventually(t, soon, func(context.Context) error {
			_, _, err := c.Kube.Discovery().ServerGroupsAndResources()
			if discovery.IsGroupDiscoveryFailedError(err) != want {
				return fmt.Errorf("discovery ends with %v", err)
			}
			return nil
		})
	}
	if _, err := services.Create(t.Context(), away, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	unlisted(true)
	for exit, args := range map[int][]string{failed: nil, done: {"--allow-incomplete"}} {
		_, said := c.svmBoth(t.Context(), t, exit, "", append([]string{"run", "all", "--dry-run"}, args...)...)
		if !strings.Contains(said, "away.example.com/v1") {
			t.Errorf("nobody learns that the resources of a server are left out:\n%s", said)
		}
	}
	c.svm(t.Context(), t, failed, "", "run", "all", settle, "--state-dir="+t.TempDir())
	if err := services.Delete(t.Context(), away.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	unlisted(false)
}

func testInterrupted(t *testing.T, c *cluster) {
	widgets := c.define(t, "widgets", "Widget", widgetCount)
	drop := "--drop-version=widgets.example.com/v1alpha1"
	c.finds(t, notSafe, "", []string{
		"ERROR VersionMayBeStored widgets.example.com", "WARNING ManagedFieldsNotServed widgets.example.com"}, drop)
	before := c.stored(t, widgets)
	dir := t.TempDir()
	file := filepath.Join(dir, "kubectl-svm-run.widgets.example.com.yaml")
	run := func(ctx context.Context, exit int, args ...string) string {
		return c.svm(ctx, t, exit, "", append([]string{"run", "widgets.example.com", settle, "--chunk-size=5",
			"--state-dir=" + dir}, args...)...)
	}

	run(t.Context(), done, "--dry-run")
	if changes := controlplane.CompareStored(before, c.stored(t, widgets)); len(changes.Encoded) > 0 {
		t.Fatalf("a dry run has written %v", changes.Encoded)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		defer interrupt()
		for ctx.Err() == nil { // If there never is a token, the run ends and fails the test.
			content, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(content), "continueToken") {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	run(ctx, failed, "--max-rewrites-per-second=1")
	if left := c.encodings(t, widgets)[v1alpha1]; left == 0 || left == widgetCount {
		t.Fatalf("%d objects are left, so the run was not interrupted in its middle", left)
	}
	if got := c.storedVersions(t, widgets); !slices.Equal(got, []string{"v1alpha1", "v1"}) {
		t.Errorf("storedVersions are %v after an interruption", got)
	}
	run(t.Context(), failed) // There is a file.
	c.startsOver(t, file)
	run(t.Context(), done, "--resume")
	after := c.stored(t, widgets)
	changes := controlplane.CompareStored(before, after)
	if err := changes.OnlyEncodings(); err != nil {
		t.Error(err)
	}
	for key, writes := range changes.Writes {
		if writes != 1 {
			t.Errorf("%s was written %d times", key, writes)
		}
	}
	if diff := cmp.Diff(map[string]int{v1: widgetCount}, c.encodings(t, widgets)); diff != "" {
		t.Errorf("encodings (-want +got):\n%s", diff)
	}
	if got := c.storedVersions(t, widgets); !slices.Equal(got, []string{"v1"}) {
		t.Errorf("storedVersions are %v", got)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	c.finds(t, done, "", []string{
		"WARNING ManagedFieldsNotServed widgets.example.com", "WARNING NoStorageState widgets.example.com"}, drop)
}

// startsOver wants a file of another time to count for nothing: the run begins with the first object again.
func (c *cluster) startsOver(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]string{
		"another server": `(run.svm/servers: .*)`, "a later revision": `(run.svm/revision: ")`,
	} {
		other := regexp.MustCompile(of).ReplaceAll(content, []byte("${1}9"))
		if string(other) == string(content) {
			t.Fatalf("the file does not have %s:\n%s", of, content)
		}
		if err := os.WriteFile(file, other, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		c.svmUntil(ctx, t, "starts over", end, "run", "widgets.example.com", "--settle-period=1h", "--resume",
			"--state-dir="+filepath.Dir(file))
		t.Logf("progress of %s does not count", name)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

const parcelCount = 12

func testDenied(t *testing.T, c *cluster) {
	parcels := c.define(t, "parcels", "Parcel", parcelCount)
	c.deny(t, parcels, "parcels-007")
	args := []string{"run", "parcels.example.com", settle, "--state-dir=" + t.TempDir()}
	for _, more := range [][]string{{"--dry-run"}, nil} {
		printed := c.svm(t.Context(), t, notSafe, "", append(args, more...)...)
		if !strings.Contains(printed, "parcels-007") || !strings.Contains(printed, "sealed") {
			t.Errorf("%v does not tell what was denied and why:\n%s", more, printed)
		}
	}
	want := map[string]int{v1: parcelCount - 1, v1alpha1: 1}
	if diff := cmp.Diff(want, c.encodings(t, parcels)); diff != "" {
		t.Errorf("encodings (-want +got):\n%s", diff)
	}
	if got := c.storedVersions(t, parcels); !slices.Equal(got, []string{"v1alpha1", "v1"}) {
		t.Errorf("storedVersions are %v after a failure", got)
	}
	t.Run("by the status", func(t *testing.T) { testByStatus(t, c, parcels, args) })
	t.Run("at a version that is not served", func(t *testing.T) { testStoredUnserved(t, c, parcels, args) })
}

// testByStatus gives the objects a status, which the policy is not about.
func testByStatus(t *testing.T, c *cluster, parcels schema.GroupResource, args []string) {
	c.ChangeDefinition(t, parcels, func(definition *apiextensionsv1.CustomResourceDefinition) {
		status := &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		definition.Spec.Versions[0].Subresources, definition.Spec.Versions[1].Subresources = status, status
	})
	client := c.Dynamic.Resource(parcels.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		// Discovery may show the status before the API server takes it.
		if _, err := client.Patch(ctx, "parcels-007", types.MergePatchType, []byte(`{}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status"); err != nil {
			return err
		}
		document, err := c.Kube.Discovery().ServerResourcesForGroupVersion(v1)
		if err == nil && !slices.ContainsFunc(document.APIResources, func(r metav1.APIResource) bool {
			return r.Name == "parcels/status"
		}) {
			err = errors.New("there is no status yet")
		}
		return err
	})
	printed := c.svm(t.Context(), t, done, "", append(args, "--dry-run")...)
	if want := fmt.Sprintf("would accept %[1]d of %[1]d", parcelCount); !strings.Contains(printed, want) {
		t.Errorf("a dry run does not say %q:\n%s", want, printed)
	}
	c.svm(t.Context(), t, done, "", args...)
	if diff := cmp.Diff(map[string]int{v1: parcelCount}, c.encodings(t, parcels)); diff != "" {
		t.Errorf("encodings (-want +got):\n%s", diff)
	}
}

// testStoredUnserved stores objects at v1alpha1, and serves only v1. There they would lose the fields of v1alpha1.
func testStoredUnserved(t *testing.T, c *cluster, parcels schema.GroupResource, args []string) {
	c.ChangeDefinition(t, parcels, func(definition *apiextensionsv1.CustomResourceDefinition) {
		definition.Spec.Versions[0].Storage, definition.Spec.Versions[0].Served = true, false
		definition.Spec.Versions[1].Storage = false
	})
	for _, more := range [][]string{nil, {"--dry-run"}} { // The run waits until the server follows the definition.
		if printed := c.svm(t.Context(), t, notSafe, "", append(args, more...)...); !strings.Contains(
			printed, "Serve v1alpha1, or add a conversion webhook") {
			t.Errorf("%v does not say what to do:\n%s", more, printed)
		}
	}
}

// deny makes the API server refuse updates of an object, and returns when it does.
func (c *cluster) deny(t *testing.T, gr schema.GroupResource, name string) {
	t.Helper()
	policies := c.Kube.AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: gr.Resource}}
	policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{gr.Group}, APIVersions: []string{"*"}, Resources: []string{gr.Resource},
				},
			},
		}},
	}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{
		Expression: fmt.Sprintf("object.metadata.name != '%s'", name), Message: "it is sealed",
	}}
	if _, err := policies.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: policy.ObjectMeta}
	binding.Spec.PolicyName = policy.Name
	binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	if _, err := policies.ValidatingAdmissionPolicyBindings().Create(
		t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := c.Dynamic.Resource(gr.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := client.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("updates of %s are accepted", name)
		}
		return nil
	})
}

// testFile is about a definition that drops a stored version, whose conversion webhook does not exist, or whose stored
// version loses fields.
func testFile(t *testing.T, c *cluster) {
	gr := c.define(t, "crates", "Crate", 3)
	manifest := func(storage string, versions ...string) map[string]any {
		object, err := yaml.Marshal(samples.Definition(gr, "Crate", storage, versions...))
		if err != nil {
			t.Fatal(err)
		}
		fields := unstructured.Unstructured{}
		if err := yaml.Unmarshal(object, &fields.Object); err != nil {
			t.Fatal(err)
		}
		fields.SetAPIVersion("apiextensions.k8s.io/v1")
		fields.SetKind("CustomResourceDefinition")
		return fields.Object
	}
	text := func(object map[string]any) string {
		out, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n---\n" + string(out)
	}
	dropped := text(manifest("v1", "v1"))
	c.finds(t, notSafe, dropped, []string{
		"ERROR DefinitionRefused crates.example.com", "ERROR VersionMayBeStored crates.example.com",
		"WARNING ManagedFieldsNotServed crates.example.com"}, "--file=-")
	converted := manifest("v1", "v1alpha1", "v1")
	if err := unstructured.SetNestedMap(converted, map[string]any{
		"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": []any{"v1"},
			"clientConfig":             map[string]any{"service": map[string]any{"namespace": "default", "name": "absent"}},
		},
	}, "spec", "conversion"); err != nil {
		t.Fatal(err)
	}
	c.finds(t, notSafe, text(converted), []string{"ERROR ConversionWebhookMissing crates.example.com"}, "--file=-")
	c.finds(t, done, "kind: ConfigMap\napiVersion: v1\n", []string{"WARNING NoDefinitions"}, "--file=-")
	narrowed := manifest("v1", "v1alpha1", "v1")
	for _, version := range narrowed["spec"].(map[string]any)["versions"].([]any) {
		if version := version.(map[string]any); version["name"] == "v1alpha1" {
			version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}
		}
	}
	c.finds(t, notSafe, text(narrowed), []string{"ERROR FieldsDropped crates.example.com"}, "--file=-")

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "crates.yaml"), []byte(dropped), 0o600); err != nil {
		t.Fatal(err)
	}
	_, said := c.svmBoth(t.Context(), t, done, "", "run", "crates.example.com", settle, "--state-dir="+dir)
	if !strings.Contains(said, "Warning: --settle-period is shorter than 1m5s") {
		t.Errorf("nobody warns of a short settle period:\n%s", said)
	}
	c.finds(t, done, "", []string{
		"WARNING ManagedFieldsNotServed crates.example.com", "WARNING NoStorageState crates.example.com"}, "--file="+dir)
}
