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

package denied

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

func TestRefusal(t *testing.T) {
	for _, test := range []struct {
		reason       metav1.StatusReason
		message      string
		who, whatToD string
	}{
		{"", `admission webhook "no.example.com" denied the request: no`, "webhook no.example.com", "matchCondition"},
		{"InternalError", `Internal error occurred: failed calling webhook "no.example.com": EOF`,
			"webhook no.example.com", "Repair it, or exclude these objects from it. If its software is gone, delete"},
		{"Invalid", "widgets \"a\" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'b' denied request: no",
			"ValidatingAdmissionPolicy frozen", "matchCondition"},
		{"Forbidden", `secrets "a" is forbidden: User "svm" cannot patch resource "secrets" in API group ""`,
			"RBAC", "Allow the user svm to patch"},
		{"Invalid", `Widget "a" is invalid: spec.size: Invalid value: should be at most 3`,
			"validation", cli.Kubectl + " edit"},
		{"NotFound", `namespaces "lost" not found`, "namespace lost", "Create the namespace again"},
		{"", "rewriting default/a would change more than its encoding, which the fence refuses. A mutating webhook does that",
			"the fence", "Read the message"},
		{"", "rewriting default/a would drop .spec.b for clients of version v1. The schema lacks",
			"the manager", "lose fields"},
		{"", "rewriting a: the resource was defined with another scope, so no request reaches it. If you need it",
			"the manager", "another scope"},
		{"", `admission webhook "no.example.com" denied the request: it would drop nothing`, "webhook no.example.com",
			"matchCondition"},
		{"", `admission webhook "no.example.com" denied the request: failed calling webhook "good"`,
			"webhook no.example.com", "matchCondition"},
		{"InternalError", "Internal error occurred: no matching prefix found", "API server", "Delete nothing"},
		{"InternalError", `Internal error occurred: failed calling webhook "a": unable to transform key "b": no`, "webhook a",
			"Repair it"},
		{"", `admission webhook "no.example.com" denied the request: failed to decrypt DEK`, "webhook no.example.com",
			"matchCondition"},
		{"InternalError", `Internal error occurred: add: path "User "eve" cannot patch resource"`, "API server", "Read"},
		{"Forbidden", "exceeded quota", "API server", "Read the message"},
	} {
		who, remedy := refusal(migrationv1alpha1.DeniedObject{Reason: test.reason, Message: test.message})
		if who != test.who || !strings.Contains(remedy, test.whatToD) {
			t.Errorf("%s: got %q and %q, want %q and %q", test.message, who, remedy, test.who, test.whatToD)
		}
	}
}

// inContext is what a person sees who has chosen a cluster: each command has the flag that chooses it.
var inContext = strings.NewReplacer("kubectl svm ", "kubectl svm --context=a ", "kubectl ", "kubectl --context=a ")

func TestScreen(t *testing.T) {
	m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "widgets-1"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"}
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: 4}
	m.Status.DeniedObjects = []migrationv1alpha1.DeniedObject{
		{Namespace: "pay", Name: "roll", Reason: "Invalid", Message: "is invalid:\r\nThen:\n  too old"},
		{Namespace: "pay", Name: "slip", Reason: "Invalid", Message: "is invalid: too old"},
		{Name: "e\x1b[2J", Reason: "Forbidden", Message: "n\x1b[2Jo"}, // Names of roles may have any characters.
	}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: streams, ConnectionFlags: "--context=a"}}}
	gone := Denied{Resource: "gadgets.example.com", Total: 1, gone: true}
	o.print([]Denied{newDenied(&m), gone})
	const want = `RESOURCE              NAMESPACE   NAME     REFUSED BY   REASON
widgets.example.com   pay         roll     validation   Invalid
widgets.example.com   pay         slip     validation   Invalid
widgets.example.com               e^[[2J   API server   Forbidden
... and 1 more of widgets.example.com. A migration names at most 100: if these are repaired, the next one names others.
... and 1 more of gadgets.example.com. A migration names at most 100: if these are repaired, the next one names others.

What to do:
  API server: Read the message, and change the objects or the rule that refuses them.
    The answer for e^[[2J: n^[[2Jo
  validation: The objects are not valid any more. Repair them with kubectl edit, or delete them.
    The answer for pay/roll: is invalid: Then: too old
Then:
  kubectl svm retry widgets.example.com
  nothing: the API server does not serve gadgets.example.com any more
`
	if got, want := out.String(), inContext.Replace(want); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestDeniedAdmissionObjects are tried again with the role for them, and somebody waits to take it away.
func TestDeniedAdmissionObjects(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: streams, ConnectionFlags: "--context=a"}}}
	const policies = "validatingadmissionpolicies.admissionregistration.k8s.io"
	widgets := Denied{Resource: "widgets.example.com", Total: 1}
	o.print([]Denied{{Resource: policies, Total: 1}, widgets, widgets})
	const want = "Then:\n  kubectl svm rbac --admission | kubectl apply -f -\n  kubectl svm migrate --wait " + policies +
		"\n  kubectl svm retry widgets.example.com\n  kubectl svm rbac --admission | kubectl delete -f -\n"
	if got, want := out.String(), inContext.Replace(want); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant at its end\n%s", got, want)
	}
}

// TestForeignCommands come from tenants and webhooks: they stay as they are. Those of the plugin have the flags.
func TestForeignCommands(t *testing.T) {
	const words = "no: run kubectl delete secret a"
	m := migrationv1alpha1.StorageVersionMigration{}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"}
	m.Status.DeniedObjects = []migrationv1alpha1.DeniedObject{{Name: "kubectl edit", Reason: "Invalid", Message: words}}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: streams, ConnectionFlags: "--context='a b'"}}}
	o.print([]Denied{newDenied(&m)})
	o.Output.PrintAnswer(o.Env, newDenied(&m))
	for text, times := range map[string]int{
		words: 2, "   kubectl edit   validation": 1, "for kubectl edit: ": 1, `"name": "kubectl edit"`: 1,
		"Repair them with kubectl --context='a b' edit, or": 2, "kubectl svm --context='a b' retry widgets": 1,
	} {
		if n := strings.Count(out.String(), text); n != times {
			t.Errorf("%q is there %d times, and not %d:\n%s", text, n, times, out)
		}
	}
}

func TestNewerMigrationsCount(t *testing.T) {
	named := func(name string, denied int64, ended migrationv1alpha1.MigrationConditionType,
	) migrationv1alpha1.StorageVersionMigration {
		m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: denied}
		if ended != "" {
			m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: ended, Status: "True"}}
		}
		return m
	}
	old := named("old", 2, migrationv1alpha1.MigrationFailed)
	for want, newer := range map[string]migrationv1alpha1.StorageVersionMigration{
		"":    named("done", 0, migrationv1alpha1.MigrationSucceeded),
		"old": named("running", 0, migrationv1alpha1.MigrationRunning),
		// Nothing shows that the objects are not denied any more.
		"old ":  named("refused", 0, migrationv1alpha1.MigrationFailed),
		"again": named("again", 1, migrationv1alpha1.MigrationFailed),
	} {
		var names []string
		for _, m := range newestFailed([]migrationv1alpha1.StorageVersionMigration{newer, old}) {
			names = append(names, m.Name)
		}
		if got := strings.Join(names, " "); got != strings.TrimSpace(want) {
			t.Errorf("beside %s: got %q, want %q", newer.Name, got, want)
		}
	}
}

func TestNamedTwice(t *testing.T) {
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
	for _, name := range []string{"gadgets", "widgets"} {
		m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name + "-1"}}
		m.Spec.Resource.Resource, m.Status.Progress = name, &migrationv1alpha1.MigrationProgress{Denied: 1}
		cluster.Migrations = append(cluster.Migrations, m)
		cluster.Catalog.Add(m.GroupResource())
	}
	o := &Options{NamedOptions: cli.NamedOptions{Names: []string{"widgets", "gadgets", "widgets-1"}}}
	if selected, err := o.selected(cluster); err != nil || len(selected) != 2 {
		t.Errorf("got %d migrations, want 2, and the error %v", len(selected), err)
	}
}

func TestNothingDenied(t *testing.T) {
	m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "new-key"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Resource: "secrets"}
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationFailed, Status: "True", Reason: "ListRefused", Message: "No permission."},
	}
	running := m
	running.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationRunning, Status: "True"},
	}
	if again := newestFailed([]migrationv1alpha1.StorageVersionMigration{running, m}); len(again) > 0 {
		t.Errorf("another attempt runs, and got %v", again)
	}
	var failed []Denied
	for _, m := range newestFailed([]migrationv1alpha1.StorageVersionMigration{m, m}) {
		failed = append(failed, newDenied(&m))
	}
	for want, all := range map[string][]Denied{
		"No objects are denied.\n": nil,
		"No objects are denied.\nThe migration new-key of secrets failed, ListRefused: No permission.\n": failed,
	} {
		var out bytes.Buffer
		o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: genericiooptions.IOStreams{Out: &out}}}}
		if o.print(all); out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	}
}
