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

package status

import (
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// state makes the StorageState of a resource whose objects are stored in v1 and written in v2. The condition Agreed is
// True unless agreed names a reason.
func state(t *testing.T, resource, agreed, reason, message, more string) migrationv1alpha1.StorageState {
	t.Helper()
	safe, settled, stored := "False", "True", "[%s/v1, %s/v2]"
	if reason == "OnlyCurrentEncodingPersisted" {
		safe, stored = "True", "[%s/v2]"
	}
	if agreed != "" {
		settled = "False"
	} else {
		agreed = "ServersAgree"
	}
	r := schema.ParseGroupResource(resource)
	text := `
metadata: {name: ` + resource + `}
spec: {resource: {group: ` + r.Group + `, resource: ` + r.Resource + `}}
status:
  epoch: 1
  lastHeartbeatTime: ` + now.Format(time.RFC3339) + `
  currentEncodingVersion: ` + r.Group + `/v2
  persistedEncodingVersions: ` + strings.ReplaceAll(stored, "%s", r.Group) + `
  evidence: {source: CustomResourceDefinition}
  conditions:
  - {type: Agreed, status: "` + settled + `", reason: ` + agreed + `, message: "` + message + `"}
  - {type: SafeToRemoveOldVersions, status: "` + safe + `", reason: ` + reason + `, message: "` + message + `"}
` + more
	var s migrationv1alpha1.StorageState
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func migration(t *testing.T, name, resource, status string) migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	r := schema.ParseGroupResource(resource)
	var m migrationv1alpha1.StorageVersionMigration
	text := "metadata: {name: " + name + "}\nspec: {resource: {group: " + r.Group + ", resource: " + r.Resource + "}}\n" +
		"status: " + status
	if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// screen is what status prints about a cluster with these resources.
func screen(t *testing.T, cluster *cli.Cluster, manager assess.Manager, o *Options) string {
	t.Helper()
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	env := &cli.Env{}
	if o.Env != nil {
		*env = *o.Env
	}
	env.IOStreams, env.Clock, o.Env = streams, clocktesting.NewFakeClock(now), env
	var resources []schema.GroupResource
	for i := range cluster.States {
		resources = append(resources, cluster.States[i].GroupResource())
	}
	report := newReport(cluster, assess.Resources(cluster, resources, manager, now), manager, nil)
	o.print(report)
	return out.String()
}

var leads = assess.Manager{Running: true, Message: "The manager cp-1 leads."}

func TestWhatNeedsAPersonComesFirst(t *testing.T) {
	const done = "OnlyCurrentEncodingPersisted"
	cluster := &cli.Cluster{
		States: []migrationv1alpha1.StorageState{
			state(t, "anvils.example.com", "", done, "", ""),
			state(t, "bolts.example.com", "", "MigrationRunning", "", ""),
			state(t, "cogs.example.com", "", "MigrationFailed", "", "  backoff: "+
				"{failures: 2, lastFailureTime: 2030-01-01T11:00:00Z, nextAttemptTime: 2030-01-01T12:05:00Z}"),
			state(t, "drills.example.com", "", "Paused", "A migration is due: set spec.paused to false.", ""),
			state(t, "engines.example.com", "Settling", "AwaitingAgreement",
				"All servers write v2. They count as agreed at 2030-01-01T12:00:30Z at the earliest.", ""),
			state(t, "files.example.com", "", "Soaking", "A migration is due at 2030-01-02T12:00:00Z.", ""),
			state(t, "gears.example.com", "", "MigrationQueued", "", ""),
		},
		Migrations: []migrationv1alpha1.StorageVersionMigration{
			migration(t, "bolts-1", "bolts.example.com", `{conditions: [{type: Running, status: "True", reason: Rewriting}],
				progress: {processed: 4500, rewritten: 4500, estimatedTotal: 10000, percentComplete: 45, objectsPerMinute: 1100},
				estimatedCompletionTime: 2030-01-01T12:05:00Z}`),
			migration(t, "cogs-1", "cogs.example.com", `{progress: {processed: 9, denied: 1},
				conditions: [{type: Failed, status: "True", reason: ObjectsDenied, message: "One is refused.\x1b[2J"}]}`),
			migration(t, "gears-1", "gears.example.com", `{conditions: [{type: Waiting, status: "True", reason: Queued}]}`),
		},
	}
	const want = `RESOURCE              SAFE   STORED   WRITTEN   AGREED   REASON             NEXT
cogs.example.com      no     v1,v2    v2        yes      MigrationFailed    1 object denied; tried again in 5m
drills.example.com    no     v1,v2    v2        yes      Paused             paused by a person
bolts.example.com     no     v1,v2    v2        yes      MigrationRunning   ` +
		`[####------] 45% of 10,000 objects, 1,100/min, ends in 5m
gears.example.com     no     v1,v2    v2        yes      MigrationQueued    waits for its turn
engines.example.com   no     v1,v2    v2        no       Settling           the servers count as agreed in 30s
files.example.com     no     v1,v2    v2        yes      Soaking            a migration starts in 24h

cogs.example.com: The migration cogs-1 failed, ObjectsDenied: One is refused.^[[2J
  kubectl svm denied cogs.example.com

drills.example.com: A migration is due: set spec.paused to false.
  kubectl svm resume drills.example.com

The manager cp-1 leads.
Not safe to upgrade or to remove versions: objects of 6 of 7 resources may be stored in old versions. ` +
		`Action needed: 2. In progress: 4.
`
	if got := screen(t, cluster, leads, &Options{}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{ConnectionFlags: "--context=a"}}}
	inContext := strings.ReplaceAll(want, "kubectl svm ", "kubectl svm --context=a ")
	if got := screen(t, cluster, leads, o); got != inContext {
		t.Errorf("got\n%s\nwant\n%s", got, inContext)
	}
}

func TestSafe(t *testing.T) {
	cluster := &cli.Cluster{States: []migrationv1alpha1.StorageState{
		state(t, "anvils.example.com", "", "OnlyCurrentEncodingPersisted", "", ""),
		state(t, "bolts.example.com", "", "OnlyCurrentEncodingPersisted", "", ""),
	}}
	const table = `RESOURCE             SAFE   STORED   WRITTEN   AGREED   REASON                         NEXT
anvils.example.com   yes    v2       v2        yes      OnlyCurrentEncodingPersisted
bolts.example.com    yes    v2       v2        yes      OnlyCurrentEncodingPersisted

`
	const answer = "Safe to upgrade and to remove old versions: every object of 2 resources is stored in the version " +
		"that the servers write."
	named := &Options{NamedOptions: cli.NamedOptions{Names: []string{"all"}}}
	gone := assess.Manager{Message: "No manager seems to run."}
	unread := assess.Manager{Message: "It is not known.", Help: "run the command again"}
	const unknown = "No manager seems to run.\nNot known to be safe: when a manager last looked, every object of 2 " +
		"resources was stored in the version that the servers write. To find out, a manager has to run. " + startManager +
		"\n"
	coloured := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{Colour: true}}}
	for _, test := range []struct {
		name    string
		manager assess.Manager
		o       *Options
		want    string
	}{
		{"no names", leads, &Options{}, "The manager cp-1 leads.\n" + answer + "\n"},
		{"all", leads, named, table + "The manager cp-1 leads.\n" + answer + "\n"},
		{"on a terminal", leads, coloured, "The manager cp-1 leads.\n\x1b[32m" + answer + "\x1b[0m\n"},
		{"nobody looks, all", gone, named, strings.ReplaceAll(table, "yes    v2", "?      v2") + unknown},
		{"nobody looks", gone, &Options{}, unknown},
		{"nobody knows whether somebody looks", unread, &Options{}, "It is not known.\nNot known to be safe: when a " +
			"manager last looked, every object of 2 resources was stored in the version that the servers write. To find " +
			"out, run the command again.\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := screen(t, cluster, test.manager, test.o); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// TestWhatFails says why a migration does not go on, also if the manager may get over it without a person.
func TestWhatFails(t *testing.T) {
	cluster := &cli.Cluster{
		States: []migrationv1alpha1.StorageState{
			state(t, "anvils.example.com", "", "MigrationRunning", "", ""),
			state(t, "bolts.example.com", "", "MigrationRunning", "It has begun.", ""),
		},
		Migrations: []migrationv1alpha1.StorageVersionMigration{
			migration(t, "bolts-1", "bolts.example.com", `{conditions: [{type: Running, status: "True",
				reason: RetryingTransientErrors, message: "A webhook is away."}]}`),
		},
	}
	got := screen(t, cluster, leads, &Options{})
	if !strings.Contains(got, "\n\nbolts.example.com: A webhook is away.\n\nThe") {
		t.Errorf("got\n%s", got)
	}
}

// TestWhoWorksOnIt has objects in an old version. Only if it is known that no manager runs nothing happens.
func TestWhoWorksOnIt(t *testing.T) {
	cluster := &cli.Cluster{States: []migrationv1alpha1.StorageState{
		state(t, "bolts.example.com", "", "MigrationQueued", "A migration is due.", ""),
	}}
	for end, manager := range map[string]assess.Manager{
		" Nothing happens until a manager runs. " + startManager: {Message: "No manager seems to run."},
		" It is not known whether a manager works on them. To find out, run the command again.": {
			Message: "It is not known.", Help: "run the command again"},
	} {
		if got := screen(t, cluster, manager, &Options{}); !strings.HasSuffix(got, end+"\n") {
			t.Errorf("got\n%s\nwant at its end %q", got, end)
		}
	}
}

func TestWhatNobodyConfirms(t *testing.T) {
	old := state(t, "bolts.example.com", "", "OnlyCurrentEncodingPersisted", "", "")
	old.Status.LastHeartbeatTime.Time = now.Add(-3 * 24 * time.Hour)
	cluster := &cli.Cluster{States: []migrationv1alpha1.StorageState{
		state(t, "anvils.example.com", "", "OnlyCurrentEncodingPersisted", "", ""), old,
	}}
	const want = `RESOURCE            SAFE   STORED   WRITTEN   AGREED   REASON         NEXT
bolts.example.com   no     v2       v2        yes      NotConfirmed   the trigger confirms it

The manager cp-1 leads.
Not known to be safe: 1 of 2 StorageStates were not confirmed within the last hour, or since their ` +
		`CustomResourceDefinition changed. Check that the manager runs the trigger (--controllers), and read its log.
`
	if got := screen(t, cluster, leads, &Options{}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The trigger may be gone, or may not have seen the change yet.
func TestDefinitionThatHasChanged(t *testing.T) {
	looked := state(t, "bolts.example.com", "", "OnlyCurrentEncodingPersisted", "", "")
	looked.Status.Evidence.CustomResourceDefinition = &migrationv1alpha1.CustomResourceDefinitionEvidence{
		UID: "one", Generation: 3,
	}
	for _, test := range []struct {
		name       string
		definition *metav1.ObjectMeta
		safe       bool
	}{
		{"the same", &metav1.ObjectMeta{UID: "one", Generation: 3}, true},
		{"read before the trigger looked", &metav1.ObjectMeta{UID: "one", Generation: 2}, true},
		{"not read", nil, true},
		{"changed", &metav1.ObjectMeta{UID: "one", Generation: 4}, false},
		{"another of the same name", &metav1.ObjectMeta{UID: "two", Generation: 1}, false},
	} {
		cluster := &cli.Cluster{
			States:      []migrationv1alpha1.StorageState{looked},
			Definitions: map[string]*metav1.ObjectMeta{"bolts.example.com": test.definition},
		}
		got := screen(t, cluster, leads, &Options{})
		if safe := strings.Contains(got, "\nSafe to upgrade"); safe != test.safe {
			t.Errorf("%s: got\n%s", test.name, got)
		}
	}
}

func TestDefinitionsThatMayNotBeRead(t *testing.T) {
	cluster := &cli.Cluster{
		States: []migrationv1alpha1.StorageState{
			state(t, "bolts.example.com", "", "OnlyCurrentEncodingPersisted", "", ""),
		},
	}
	cluster.DefinitionsUnread = apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("you may not"))
	got := screen(t, cluster, leads, &Options{})
	if !strings.Contains(got, "\nSafe") || !strings.Contains(got, "you may not") {
		t.Errorf("got\n%s", got)
	}
	if report := newReport(cluster, nil, leads, nil); report.Answer != Safe || report.Unknown == "" {
		t.Errorf("the answer is %+v", report)
	}
	cluster.DefinitionsUnread = errors.New("it does not answer")
	got = screen(t, cluster, leads, &Options{})
	if !strings.Contains(got, "\nNot known to be safe: it does not answer") {
		t.Errorf("got\n%s", got)
	}
}

// A new encryption key leaves the versions as they are, so the resource is safe whether or not its migration succeeds.
func TestSafeWithAFailedMigration(t *testing.T) {
	paused := state(t, "secrets", "", "OnlyCurrentEncodingPersisted", "", "")
	paused.Spec.Paused = true
	cluster := &cli.Cluster{
		States: []migrationv1alpha1.StorageState{paused},
		Migrations: []migrationv1alpha1.StorageVersionMigration{migration(t, "new-key", "secrets", `{conditions: [
			{type: Failed, status: "True", reason: ListRefused, message: "No permission."}]}`)},
	}
	got := screen(t, cluster, leads, &Options{})
	for _, want := range []string{
		"secrets: All objects are stored in the current version. But", "new-key failed, ListRefused: No permission.",
		"kubectl svm history secrets -o wide", "\nSafe to upgrade", "Paused: 1 of the safe resources",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it %q", got, want)
		}
	}
}

// After an installation, the same happens to a hundred resources.
func TestManyThatAreAlike(t *testing.T) {
	cluster := &cli.Cluster{}
	for _, name := range strings.Split("abcdefgh", "") {
		cluster.States = append(cluster.States, state(t, name+".example.com", "", "MigrationQueued", "", ""))
	}
	got := screen(t, cluster, leads, &Options{})
	const want = `
e.example.com   no     v1,v2    v2        yes      MigrationQueued   the trigger creates a migration
... 3 more      no                        yes      MigrationQueued   the trigger creates a migration

`
	if !strings.Contains(got, want) || strings.Contains(got, "f.example.com") {
		t.Errorf("got\n%s\nwant in it\n%s", got, want)
	}
}

// Where the manager only observes, a person has to migrate everything.
func TestManyThatTheSameHelps(t *testing.T) {
	const waits = "A migration is due, but --auto-migrate leaves the resource out."
	cluster := &cli.Cluster{}
	for _, name := range strings.Split("abcdefg", "") {
		s := state(t, name+"s.admissionregistration.k8s.io", "", "NotSelectedForMigration", waits, "")
		cluster.States = append(cluster.States, s)
	}
	cluster.States = append(cluster.States, state(t, "widgets.example.com", "", "NotSelectedForMigration", waits, ""))
	got := screen(t, cluster, leads, &Options{})
	const want = `
es.admissionregistration.k8s.io   no     v1,v2    v2        yes      NotSelectedForMigration   LEFT OUT
... 2 more                        no                        yes      NotSelectedForMigration   LEFT OUT
widgets.example.com               no     v1,v2    v2        yes      NotSelectedForMigration   LEFT OUT

as.admissionregistration.k8s.io and 6 more: A migration is due, but --auto-migrate leaves the resource out.
  kubectl svm rbac --admission | kubectl apply -f -
  kubectl svm migrate --wait '*.admissionregistration.k8s.io'
  kubectl svm rbac --admission | kubectl delete -f -

widgets.example.com: A migration is due, but --auto-migrate leaves the resource out.
  kubectl svm migrate widgets.example.com

`
	got = strings.ReplaceAll(got, "--auto-migrate leaves it out", "LEFT OUT")
	if !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant in it\n%s", got, want)
	}
}

// Whoever names all asks for as much as whoever names nothing.
func TestNamesThatMakeTheAnswerUnknown(t *testing.T) {
	cluster := &cli.Cluster{Catalog: &cli.Catalog{Incomplete: &discovery.ErrGroupDiscoveryFailed{
		Groups: map[schema.GroupVersion]error{{Group: "away.example.com", Version: "v1"}: errors.New("no endpoints")},
	}}}
	for names, unknown := range map[string]bool{
		"": true, "all": true, "*.away.example.com": true, "secrets": false, "*.example.com": false,
	} {
		o := &Options{NamedOptions: cli.NamedOptions{
			Env: &cli.Env{Clock: clocktesting.NewFakeClock(now)}, Clients: &cli.Clients{Kube: fake.NewClientset()},
			Names: strings.Fields(names),
		}}
		if got := o.report(t.Context(), cluster, nil).Unknown; (got != "") != unknown {
			t.Errorf("the names %q: the answer is unknown because of %q, want %t", names, got, unknown)
		}
	}
}

// TestSettlingTogether has resources that settle within seconds of each other, as after an installation.
func TestSettlingTogether(t *testing.T) {
	settling := func(after time.Duration) *assess.Resource {
		at := metav1.NewTime(time.Unix(0, 0).Add(after))
		return &assess.Resource{Attention: assess.Wait, Reason: "Settling", NextTime: &at, Next: "in " + after.String()}
	}
	if !alike(settling(time.Minute), settling(time.Minute+2*time.Second)) {
		t.Error("each resource has a line of its own")
	}
	if alike(settling(time.Minute), settling(time.Hour)) {
		t.Error("one line stands for resources that settle at different times")
	}
}
