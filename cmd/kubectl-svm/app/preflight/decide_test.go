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
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// brief is a finding without its message.
func brief(found Findings) []string {
	var lines []string
	for _, f := range found.sorted() {
		lines = append(lines, strings.TrimSpace(string(f.Level)+" "+string(f.Code)+" "+f.Resource))
	}
	return lines
}

// state returns a StorageState that claims these versions. The last one is written.
func state(kind, resource string, versions ...string) migrationv1alpha1.StorageState {
	gr := schema.ParseGroupResource(resource)
	s := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: resource}}
	s.Spec.Resource = migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	s.Status.LastHeartbeatTime, s.Status.Epoch = metav1.NewTime(now), 1
	s.Status.Conditions = []metav1.Condition{{Type: migrationv1alpha1.StorageStateServed, Status: metav1.ConditionTrue}}
	s.Status.Evidence = &migrationv1alpha1.StorageEvidence{
		Source:                   migrationv1alpha1.EvidenceFromCustomResourceDefinition,
		CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{UID: definitionUID, Generation: 1},
	}
	for _, version := range versions {
		hash := version
		if version != migrationv1alpha1.Unknown {
			hash = storageversion.Hash(schema.FromAPIVersionAndKind(version, kind).GroupVersion(), kind)
		}
		s.Status.PersistedStorageVersionHashes = append(s.Status.PersistedStorageVersionHashes, hash)
		s.Status.PersistedEncodingVersions = append(s.Status.PersistedEncodingVersions, version)
		s.Status.CurrentStorageVersionHash, s.Status.CurrentEncodingVersion = hash, version
	}
	return s
}

func ofKubeAPIServerItself(s migrationv1alpha1.StorageState) migrationv1alpha1.StorageState {
	return shownBy(migrationv1alpha1.EvidenceFromServerDiscovery, s)
}

func shownBy(
	source migrationv1alpha1.EvidenceSource, s migrationv1alpha1.StorageState,
) migrationv1alpha1.StorageState {
	s.Status.Evidence = &migrationv1alpha1.StorageEvidence{Source: source}
	return s
}

func with(s migrationv1alpha1.StorageState, conditions ...metav1.Condition) migrationv1alpha1.StorageState {
	s.Status.Conditions = conditions
	return s
}

func condition(of string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: of, Status: status, Reason: reason, Message: "The message of " + reason + "."}
}

// widgets is the definition of a custom resource. The first version is the storage version.
func widgets(stored []string, versions ...string) *documents.Definition {
	d := &documents.Definition{}
	d.Metadata.UID, d.Metadata.Generation, d.Status.StoredVersions = definitionUID, 1, stored
	d.Spec.Group, d.Spec.Names.Plural, d.Spec.Names.Kind = "example.com", "widgets", "Widget"
	for i, version := range versions {
		d.Spec.Versions = append(d.Spec.Versions, documents.DefinitionVersion{
			Name: version, Served: true, Storage: i == 0,
		})
	}
	return d
}

// unserving makes a definition serve a version no more.
func unserving(version string, d *documents.Definition) *documents.Definition {
	for i := range d.Spec.Versions {
		d.Spec.Versions[i].Served = d.Spec.Versions[i].Served && d.Spec.Versions[i].Name != version
	}
	return d
}

const definitionUID = "the widgets"

var (
	now      = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	running  = assess.Manager{Running: true}
	agreed   = condition(migrationv1alpha1.StorageStateAgreed, metav1.ConditionTrue, "ServersAgree")
	migrated = condition(migrationv1alpha1.StorageStateMigrated, metav1.ConditionTrue, "OnlyCurrentEncodingPersisted")
)

func notMigrated(reason string) metav1.Condition {
	return condition(migrationv1alpha1.StorageStateMigrated, metav1.ConditionFalse, reason)
}

func TestSnapshot(t *testing.T) {
	const v1, old = "example.com/v1", "example.com/v1alpha1"
	disagree := condition(migrationv1alpha1.StorageStateAgreed, metav1.ConditionFalse, "ServersDisagree")
	failed := with(state("Widget", "widgets.example.com", old, v1), agreed, notMigrated("MigrationFailed"))
	failed.Status.Backoff = &migrationv1alpha1.MigrationBackoff{
		LastFailedMigration: &migrationv1alpha1.MigrationReference{Name: "widgets-1", UID: "1"},
	}
	denied := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "widgets-1", UID: "1"}}
	denied.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: 3}
	dropped := with(state("Widget", "widgets.example.com", v1), agreed, migrated)
	dropped.Status.ManagedFieldsVersions = []migrationv1alpha1.ManagedFieldsVersion{{Version: "v1alpha1", Objects: 7}}
	ofAnother := with(state("Widget", "widgets.example.com", v1), migrated)
	ofAnother.Status.Epoch = 0
	states := func(states ...migrationv1alpha1.StorageState) Snapshot {
		return Snapshot{Now: now, Manager: running, States: states}
	}
	well := states(with(state("Widget", "widgets.example.com", v1), agreed, migrated))
	later, missing, unknown, changed, ahead := well, well, well, well, well
	later.Now = now.Add(2 * time.Hour)
	ahead.Now, ahead.Manager = now.Add(-2*time.Hour), assess.Manager{Help: assess.SetClocks, Message: "Clocks differ."}
	missing.Missing, unknown.Unknown = []string{"a", "b", "c", "d", "e", "f"}, "metrics.k8s.io"
	changed.Definitions = []documents.Definition{*widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1")}
	changed.Definitions[0].Metadata.Generation++
	tests := []struct {
		name string
		in   Snapshot
		want []string
	}{
		{"all is well", states(with(state("Widget", "widgets.example.com", v1), agreed, migrated)), nil},
		{"no API, which Find tells", Snapshot{APIProblem: "The API server does not serve it."}, nil},
		{"no manager", Snapshot{Manager: assess.Manager{Message: "None runs."}},
			[]string{"ERROR NoManager", "ERROR NoStorageState"}},
		{"what a manager wrote is from the future", ahead,
			[]string{"ERROR NoManager", "ERROR StorageStateOutdated widgets.example.com"}},
		{"a state that nobody confirms", later, []string{"ERROR StorageStateOutdated widgets.example.com"}},
		{"a state of another generation", changed, []string{"ERROR StorageStateOutdated widgets.example.com",
			"WARNING StoredVersionsNotPruned widgets.example.com"}},
		{"resources without a state", missing, []string{"ERROR NoStorageState"}},
		{"groups that do not answer", unknown, []string{"WARNING NoStorageState"}},
		{"old versions", states(
			with(state("Widget", "widgets.example.com", old, v1), agreed, notMigrated("MigrationRunning"))),
			[]string{"WARNING OldEncodings widgets.example.com"}},
		{"nothing is known", states(with(state("Widget", "widgets.example.com", migrationv1alpha1.Unknown, v1), agreed,
			notMigrated("MigrationQueued"))), []string{"ERROR EncodingsUnknown widgets.example.com"}},
		{"a state without a status", states(with(state("Widget", "widgets.example.com"))), []string{
			"ERROR EncodingsUnknown widgets.example.com", "ERROR StorageStateOutdated widgets.example.com"}},
		{"a state of another controller", states(ofAnother), []string{"ERROR StorageStateOutdated widgets.example.com"}},
		{"servers disagree", states(with(state("Widget", "widgets.example.com", old, v1), disagree,
			notMigrated("AwaitingAgreement"))),
			[]string{"ERROR ServersDisagree widgets.example.com", "WARNING OldEncodings widgets.example.com"}},
		{"paused", states(with(state("Widget", "widgets.example.com", old, v1), agreed, notMigrated("Paused"))),
			[]string{"WARNING MigrationHeldBack widgets.example.com", "WARNING OldEncodings widgets.example.com"}},
		{"paused, and nothing is known", states(with(state("Widget", "widgets.example.com", migrationv1alpha1.Unknown, v1),
			agreed, notMigrated("Paused"))), []string{"ERROR EncodingsUnknown widgets.example.com"}},
		{"a failure", states(failed), []string{"ERROR MigrationFailed widgets.example.com"}},
		{"denied objects", Snapshot{Now: now, Manager: running, States: []migrationv1alpha1.StorageState{failed},
			Migrations: []migrationv1alpha1.StorageVersionMigration{denied}},
			[]string{"ERROR ObjectsDenied widgets.example.com"}},
		{"storedVersions that nobody pruned", Snapshot{Now: now, Manager: running, States: states(
			with(state("Widget", "widgets.example.com", v1), agreed, migrated)).States,
			Definitions: []documents.Definition{*widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1")}},
			[]string{"WARNING StoredVersionsNotPruned widgets.example.com"}},
		{"managedFields of a version that has left the definition", Snapshot{Now: now, Manager: running,
			States:      []migrationv1alpha1.StorageState{dropped},
			Definitions: []documents.Definition{*widgets([]string{"v1"}, "v1")}},
			[]string{"WARNING ManagedFieldsNotServed widgets.example.com"}},
		{"managedFields of a version that is only not served", Snapshot{Now: now, Manager: running,
			States:      []migrationv1alpha1.StorageState{dropped},
			Definitions: []documents.Definition{*unserving("v1alpha1", widgets([]string{"v1"}, "v1", "v1alpha1"))}}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, brief(decideSnapshot(test.in))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFailureSaysWhy(t *testing.T) {
	failed := with(state("Widget", "widgets.example.com", "example.com/v1alpha1", "example.com/v1"), agreed,
		notMigrated("MigrationFailed"))
	failed.Status.Backoff = &migrationv1alpha1.MigrationBackoff{
		LastFailedMigration: &migrationv1alpha1.MigrationReference{Name: "widgets-1", UID: "1"},
	}
	migration := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "widgets-1", UID: "1"}}
	migration.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
		Type: migrationv1alpha1.MigrationFailed, Status: corev1.ConditionTrue, Message: rewrite.PermissionRemedy,
	}}
	migration.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: 3} // for the same permission
	findings := decideSnapshot(Snapshot{Now: now, Manager: running, States: []migrationv1alpha1.StorageState{failed},
		Migrations: []migrationv1alpha1.StorageVersionMigration{migration}})
	if len(findings) != 1 || !strings.HasSuffix(findings[0].Message, "Its status says: "+rewrite.PermissionRemedy) {
		t.Errorf("got the findings %+v, want one that ends with the message of the migration", findings)
	}
}

// serving is a server of one kind.
func serving(version, kind string) TargetServer {
	gv := schema.FromAPIVersionAndKind(version, kind).GroupVersion()
	return TargetServer{Release: 37, Serves: map[string]bool{storageversion.Hash(gv, kind): true}}
}

func TestTarget(t *testing.T) {
	const hpas = "horizontalpodautoscalers.autoscaling"
	tests := []struct {
		name   string
		state  migrationv1alpha1.StorageState
		target TargetServer
		want   []string
	}{
		{"a version that it reads and serves", state("Deployment", "deployments.apps", "apps/v1"), releaseTarget(37), nil},
		{"a version that left its sources", state("HorizontalPodAutoscaler", hpas, "autoscaling/v2beta2", "autoscaling/v2"),
			releaseTarget(36), []string{"ERROR EncodingUnreadable " + hpas}},
		{"the same, one release before", state("HorizontalPodAutoscaler", hpas, "autoscaling/v2beta2", "autoscaling/v2"),
			releaseTarget(35), nil},
		{"a downgrade below a new version", state(
			"MutatingAdmissionPolicy", "mutatingadmissionpolicies.admissionregistration.k8s.io",
			"admissionregistration.k8s.io/v1"), releaseTarget(35),
			[]string{"ERROR EncodingUnreadable mutatingadmissionpolicies.admissionregistration.k8s.io"}},
		{"a resource that it has at other versions", state("Workload", "workloads.scheduling.k8s.io",
			"scheduling.k8s.io/v1alpha1"), releaseTarget(36),
			[]string{"ERROR EncodingUnreadable workloads.scheduling.k8s.io"}},
		{"a release to come", state("Deployment", "deployments.apps", "apps/v1"), releaseTarget(99),
			[]string{"ERROR ReleaseUnknown"}},
		{"a release to come that does not serve the version", state("MutatingAdmissionPolicy",
			"mutatingadmissionpolicies.admissionregistration.k8s.io", "admissionregistration.k8s.io/v1alpha1",
			"admissionregistration.k8s.io/v1"), releaseTarget(38), []string{
			"ERROR ReleaseUnknown", "WARNING EncodingNotServed mutatingadmissionpolicies.admissionregistration.k8s.io"}},
		{"versions that nobody knows", state("Deployment", "deployments.apps", migrationv1alpha1.Unknown, "apps/v1"),
			releaseTarget(37), []string{"ERROR EncodingsUnknown deployments.apps"}},
		{"a version of a custom resource that only its hash names", state("Widget", "widgets.example.com", "Zm9vYmFyYmF6"),
			releaseTarget(37), nil},
		{"one of a built-in resource", state("Deployment", "deployments.apps", "ab/Zm9vYmFy"), releaseTarget(37),
			[]string{"ERROR EncodingUnreadable deployments.apps"}},
		{"a custom resource is none of its business", state("Widget", "widgets.example.com", "example.com/v1"),
			releaseTarget(37), nil},
		{"a custom resource of which little is known", with(state("Widget", "widgets.example.com",
			migrationv1alpha1.Unknown, "example.com/v1"), condition(migrationv1alpha1.StorageStateAgreed,
			metav1.ConditionFalse, migrationv1alpha1.StateReasonServersUnseen)), releaseTarget(37),
			[]string{"WARNING ServersUnseen widgets.example.com"}},
		{"a server that serves the version", state("Widget", "widgets.example.com", "example.com/v1"),
			serving("example.com/v1", "Widget"), nil},
		{"a server that serves another kind at the version", state("MutatingAdmissionPolicy",
			"mutatingadmissionpolicies.admissionregistration.k8s.io", "admissionregistration.k8s.io/v1"),
			TargetServer{Release: 35, Serves: serving("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy").Serves},
			[]string{"ERROR EncodingUnreadable mutatingadmissionpolicies.admissionregistration.k8s.io"}},
		{"a group of kube-apiserver that nobody knows",
			ofKubeAPIServerItself(state("Foo", "foos.new.k8s.io", "new.k8s.io/v1")), releaseTarget(37),
			[]string{"ERROR EncodingUnreadable foos.new.k8s.io"}},
		{"evidence of a later release", shownBy("Later", state("Foo", "foos.new.k8s.io", "new.k8s.io/v1")),
			releaseTarget(37), []string{"ERROR EncodingUnreadable foos.new.k8s.io"}},
		{"a group of an aggregated server", shownBy(migrationv1alpha1.EvidenceFromAggregatedDiscovery,
			state("Foo", "foos.new.k8s.io", "new.k8s.io/v1")), releaseTarget(37), nil},
		{"the same, and the server serves the version",
			ofKubeAPIServerItself(state("Foo", "foos.new.k8s.io", "new.k8s.io/v1")), serving("new.k8s.io/v1", "Foo"), nil},
		{"a server that does not", state("Widget", "widgets.example.com", "example.com/v1"),
			TargetServer{Release: 37, Serves: map[string]bool{}}, []string{"WARNING EncodingNotServed widgets.example.com"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := Snapshot{Now: now, Manager: running, States: []migrationv1alpha1.StorageState{test.state}}
			if diff := cmp.Diff(test.want, brief(decideTarget(in, test.target))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("in the middle of an upgrade", func(t *testing.T) {
		skewed := with(state("MutatingAdmissionPolicy", "mutatingadmissionpolicies.admissionregistration.k8s.io",
			"admissionregistration.k8s.io/v1"), agreed)
		skewed.Status.CurrentStorageVersionHash = migrationv1alpha1.Unknown
		in := Snapshot{Now: now, Manager: running, States: []migrationv1alpha1.StorageState{skewed}}
		found := decideTarget(in, releaseTarget(35))
		if len(found) != 1 || !strings.HasSuffix(found[0].Message, "finish it first. Run the command again when they agree") {
			t.Errorf("findings: %+v", found)
		}
	})
	t.Run("nothing recorded", func(t *testing.T) {
		want := []string{"ERROR NoStorageState"}
		if diff := cmp.Diff(want, brief(decideTarget(Snapshot{Manager: running}, releaseTarget(37)))); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
	})
	t.Run("a state that nobody confirms", func(t *testing.T) {
		in := Snapshot{Now: now.Add(2 * time.Hour), Manager: running,
			States: []migrationv1alpha1.StorageState{with(state("Deployment", "deployments.apps", "apps/v1"), agreed)}}
		want := []string{"ERROR StorageStateOutdated deployments.apps"}
		if diff := cmp.Diff(want, brief(decideTarget(in, releaseTarget(37)))); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
	})
	if _, newest := releases.Known(); newest < 37 {
		t.Errorf("the newest known release is %s", newest)
	}
}

// TestDocumentation wants a section for each code, and no other.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../../" + Documentation)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("finding.go")
	if err != nil {
		t.Fatal(err)
	}
	words := func(text []byte, pattern string) (words []string) {
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			words = append(words, string(match[1]))
		}
		slices.Sort(words)
		return words
	}
	sections, codes := words(page, `(?m)^### (\w+)$`), words(source, ` Code = "(\w+)"`)
	if diff := cmp.Diff(codes, sections); diff != "" {
		t.Errorf("sections (-codes +page):\n%s", diff)
	}
}

func TestManifests(t *testing.T) {
	read, err := readManifests([]string{"-"}, strings.NewReader(`
---
# Source: chart/templates/empty.yaml
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: v1
kind: List
items:
- apiVersion: apiextensions.k8s.io/v1
  kind: CustomResourceDefinition
  metadata: {name: widgets.example.com}
  spec:
    group: example.com
    names: {plural: widgets, kind: Widget}
    versions: [{name: v1, served: true, storage: true}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(read.definitions) != 1 || read.others != 1 {
		t.Fatalf("read %d definitions and %d others", len(read.definitions), read.others)
	}
	d, err := decodeDefinition(read.definitions[0])
	if err != nil || d.Resource().String() != "widgets.example.com" || d.StorageVersion() != "v1" {
		t.Errorf("read %+v, %v", d, err)
	}
}
