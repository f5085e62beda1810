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

package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

func TestWithoutDefinitions(t *testing.T) {
	for input, want := range map[string][]string{
		"": {"ERROR NoDefinitions"},
		"---\n# Source: chart/templates/empty.yaml\n---\n":       {"ERROR NoDefinitions"},
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n": {"WARNING NoDefinitions"},
	} {
		read, err := readManifests([]string{"-"}, strings.NewReader(input))
		if err != nil {
			t.Fatal(err)
		}
		var found Findings
		found.aboutManifests(read)
		if diff := cmp.Diff(want, brief(found)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", input, diff)
		}
	}
}

func TestManagerForbidden(t *testing.T) {
	roleOf := func(resources ...string) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"example.com"}, Resources: resources, Verbs: []string{"get", "list"}},
			{APIGroups: []string{"*"}, Resources: resources, Verbs: []string{"patch"}},
		}}
	}
	live := widgets([]string{"v1"}, "v1")
	for _, test := range []struct {
		name string
		in   Change
		want []string
	}{
		{"allowed", Change{Role: roleOf("gadgets", "widgets")}, nil},
		{"all are allowed", Change{Role: roleOf("*")}, nil},
		{"others are allowed", Change{Role: roleOf("gadgets")}, []string{"WARNING ManagerForbidden widgets.example.com"}},
		{"nothing is", Change{Live: live, Role: &rbacv1.ClusterRole{}},
			[]string{"WARNING ManagerForbidden widgets.example.com"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.in.File = widgets(nil, "v1")
			if diff := cmp.Diff(test.want, brief(decideChange(test.in))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	manifest, err := os.ReadFile("../../../../build/manifests/rbac/migrate/roles.yaml")
	if err != nil || !strings.Contains(string(manifest), "\n  name: "+install.AggregatedRole+"\n") {
		t.Errorf("the manifests have no role %s: %v", install.AggregatedRole, err)
	}
}

// TestDropAfterDenial names the command that helps: another migration alone would be denied the same objects.
func TestDropAfterDenial(t *testing.T) {
	migration := func(name string, created time.Time, denied int64) migrationv1alpha1.StorageVersionMigration {
		m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(created)}}
		m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"}
		m.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: denied}
		return m
	}
	stored := state("Widget", "widgets.example.com", "example.com/v1alpha1", "example.com/v1")
	for _, newest := range []int64{0, 3} {
		in := Snapshot{Migrations: []migrationv1alpha1.StorageVersionMigration{
			migration("old", now, 7), migration("newest", now.Add(time.Hour), newest),
		}}
		found := decideDrop(Change{Live: widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1"),
			State: &stored, Denied: in.denied("widgets.example.com")}, "v1alpha1")
		if len(found) != 1 || found[0].Code != CodeVersionMayBeStored ||
			strings.Contains(found[0].Message, cli.SVM+" denied widgets.example.com") != (newest > 0) {
			t.Errorf("%d are denied: %v", newest, found)
		}
	}
}

// TestDropWithoutManager wants the answer of status: nobody would notice a change.
func TestDropWithoutManager(t *testing.T) {
	in := Snapshot{
		Now: now, Definitions: []documents.Definition{*widgets([]string{"v1"}, "v1", "v1alpha1")},
		States: []migrationv1alpha1.StorageState{with(state("Widget", "widgets.example.com", "example.com/v1"), safe)},
	}
	for want, manager := range map[string]assess.Manager{
		"INFO VersionSafeToDrop widgets.example.com":     running,
		"ERROR StorageStateOutdated widgets.example.com": {Message: "No manager leads."},
	} {
		in.Manager = manager
		if diff := cmp.Diff([]string{want}, brief(decideDrop(in.change("widgets.example.com"), "v1alpha1"))); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
	}
}

// TestDropWithoutState has no StorageState of the resource. That says nothing only where nobody keeps StorageStates.
func TestDropWithoutState(t *testing.T) {
	const problem, warning = "ERROR NoStorageState widgets.example.com", "WARNING NoStorageState widgets.example.com"
	gadgets := []migrationv1alpha1.StorageState{with(state("Gadget", "gadgets.example.com", "example.com/v1"), safe)}
	stopped, unsure := assess.Manager{Message: "None leads."}, assess.Manager{Help: "wait", Message: "Who knows?"}
	for name, test := range map[string]struct {
		in         Snapshot
		want, says string
	}{
		"a manager runs":        {Snapshot{Manager: running}, problem, "lack the trigger"},
		"it observes only":      {Snapshot{Manager: assess.Manager{Running: true, ObservesOnly: true}}, problem, ""},
		"a manager may run":     {Snapshot{Manager: unsure}, problem, "Who knows?"},
		"a manager has run":     {Snapshot{Manager: stopped, States: gadgets}, problem, "Start svm-controller-manager"},
		"states cannot be read": {Snapshot{Manager: stopped, APIProblem: "Old.", StatesUnread: true}, problem, ""},
		"nobody keeps states":   {Snapshot{Manager: stopped}, warning, cli.SVM + " verify"},
		"states are not served": {Snapshot{Manager: stopped, APIProblem: "Not served."}, warning, ""},
	} {
		test.in.Now, test.in.Definitions = now, []documents.Definition{*widgets([]string{"v1"}, "v1", "v1alpha1")}
		found := decideDrop(test.in.change("widgets.example.com"), "v1alpha1")
		if diff := cmp.Diff([]string{test.want}, brief(found)); diff != "" {
			t.Errorf("%s: findings (-want +got):\n%s", name, diff)
		} else if !strings.Contains(found[0].Message, test.says) {
			t.Errorf("%s: the finding lacks %q: %s", name, test.says, found[0].Message)
		}
		for onlyDefinitions, level := range map[bool]Level{true: found[0].Level, false: Error} {
			var about Findings
			if about.aboutAPI(test.in, onlyDefinitions); len(about) > 0 != (test.in.APIProblem != "") ||
				len(about) > 0 && about[0].Level != level {
				t.Errorf("%s: only definitions matter: %t, and the findings are %v", name, onlyDefinitions, about)
			}
		}
	}
}

func TestOtherServerCannotBeReached(t *testing.T) {
	o := &Options{}
	o.Clients = &cli.Clients{Config: &rest.Config{Host: "https://cluster.example.com"}}
	_, err := o.askServer(t.Context(), "https://127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "--other-server and --other-server-ca select it") {
		t.Errorf("got %v", err)
	}
}

// TestCheckWebhook has a definition whose conversion webhook is a Service.
func TestCheckWebhook(t *testing.T) {
	slice := func(ready *bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "webhook-1",
				Labels: map[string]string{discoveryv1.LabelServiceName: "webhook"}},
			Endpoints: []discoveryv1.Endpoint{{Conditions: discoveryv1.EndpointConditions{Ready: ready}}},
		}
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "webhook"}}
	elsewhere := service.DeepCopy()
	elsewhere.Spec.Type = corev1.ServiceTypeExternalName
	d := widgets(nil, "v1")
	d.Spec.Conversion.Strategy = "Webhook"
	to := []byte(`{"namespace":"system","name":"webhook"}`)
	if err := json.Unmarshal(to, &d.Spec.Conversion.Webhook.ClientConfig.Service); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"no Service":          {nil, "does not exist"},
		"no endpoints":        {[]runtime.Object{service}, "no endpoint that is ready"},
		"none that is ready":  {[]runtime.Object{service, slice(ptr.To(false))}, "no endpoint that is ready"},
		"one that is ready":   {[]runtime.Object{service, slice(ptr.To(true))}, ""},
		"readiness not known": {[]runtime.Object{service, slice(nil)}, ""},
		"another host":        {[]runtime.Object{elsewhere}, ""},
	} {
		o := &Options{NamedOptions: cli.NamedOptions{Clients: &cli.Clients{Kube: fake.NewClientset(test.objects...)}}}
		problem, err := o.checkWebhook(t.Context(), *d)
		if err != nil || (problem == "") != (test.want == "") || !strings.Contains(problem, test.want) {
			t.Errorf("%s: got the problem %q and the error %v", name, problem, err)
		}
		unused, several := *d, *d
		several.Spec.Versions = append(several.Spec.Versions, documents.DefinitionVersion{Name: "v2"})
		unused.Spec = several.Spec
		unused.Spec.Conversion.Strategy = "None"
		found, err := o.checkWebhooks(t.Context(), []documents.Definition{unused, *d, several, several})
		if wrong := test.want != ""; err != nil || wrong && len(found) != 2 || !wrong && len(found) > 0 {
			t.Errorf("%s: found %v, and the error %v, of four definitions, two of which use their webhook", name, found, err)
		}
	}
}

// TestWebhooksThatCannotBeAskedAbout has the API server refuse to say anything, and then not answer.
func TestWebhooksThatCannotBeAskedAbout(t *testing.T) {
	d := widgets(nil, "v1")
	d.Spec.Conversion.Strategy = "Webhook"
	d.Spec.Versions = append(d.Spec.Versions, documents.DefinitionVersion{Name: "v2"})
	if err := json.Unmarshal([]byte(`{"name":"webhook"}`), &d.Spec.Conversion.Webhook.ClientConfig.Service); err != nil {
		t.Fatal(err)
	}
	for want, answer := range map[string]error{
		"a warning": apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "webhook", nil),
		"an error":  context.Canceled,
	} {
		client := fake.NewClientset()
		client.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, answer
		})
		o := &Options{NamedOptions: cli.NamedOptions{Clients: &cli.Clients{Kube: client}}}
		found, err := o.checkWebhooks(t.Context(), []documents.Definition{*d})
		if warned := len(found) == 1 && found[0].Level == Warning; warned != (want == "a warning") || (err == nil) != warned {
			t.Errorf("found %v, and the error %v, want %s", found, err, want)
		}
	}
}

// TestRefuses tells an answer about a definition from none. An answer is a finding, so the others are still printed.
func TestRefuses(t *testing.T) {
	crds := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewForbidden(crds, "a", errors.New("a policy denies it")), true},
		{apierrors.NewMethodNotSupported(crds, "patch"), true},
		{apierrors.NewGenericServerResponse(418, "patch", crds, "a", "a webhook denies it", 0, true), true},
		{apierrors.NewInternalError(errors.New("failed calling webhook")), true},
		{apierrors.NewUnauthorized("the token has expired"), false},
		{apierrors.NewTooManyRequests("later", 1), false},
		{apierrors.NewServiceUnavailable("shutting down"), false},
		{errors.New("connection refused"), false},
	} {
		if got := refuses(test.err); got != test.want {
			t.Errorf("%v: it refuses: %t", test.err, got)
		}
	}
}

// pages is an API server that returns three pages of metadata.
type pages struct {
	metadata.Getter
	asked *int
}

func (p pages) Resource(schema.GroupVersionResource) metadata.Getter { return p }

func (p pages) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{Items: make([]metav1.PartialObjectMetadata, objectsPerList)}
	if *p.asked++; *p.asked < 3 {
		list.Continue = "more"
	}
	return list, nil
}

// TestProgressOfList wants a person at a terminal to see how far a long list is.
func TestProgressOfList(t *testing.T) {
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	o := &Options{NamedOptions: cli.NamedOptions{
		Env:     &cli.Env{IOStreams: streams, Interactive: true},
		Clients: &cli.Clients{Metadata: pages{asked: new(int)}},
	}}
	_, problem := o.countManagedFields(t.Context(), *widgets(nil, "v1"))
	const begin = "\r\x1b[K"
	want := begin + "500 widgets.example.com listed" + begin + "1000 widgets.example.com listed" + begin
	if problem != "" || errOut.String() != want {
		t.Errorf("got the problem %q and printed %q, want %q", problem, errOut, want)
	}
}
