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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// TestWhatFails has a migration that cannot go on. The finding says why, as far as the migration has not ended.
func TestWhatFails(t *testing.T) {
	for reason, wants := range map[string]bool{"NoProgress": true, "RetryingTransientErrors": true, "Rewriting": false} {
		m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "widgets-1"}}
		m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"}
		m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
			Type: migrationv1alpha1.MigrationRunning, Status: corev1.ConditionTrue, Reason: reason, Message: "No webhook.",
		}}
		for _, stored := range []string{"example.com/v1alpha1", migrationv1alpha1.Unknown} {
			found := decideSnapshot(Snapshot{
				Now: now, Manager: running, Migrations: []migrationv1alpha1.StorageVersionMigration{m},
				States: []migrationv1alpha1.StorageState{with(state("Widget", "widgets.example.com", stored, "example.com/v1"),
					agreed, notMigrated("MigrationRunning"))},
			})
			if len(found) != 1 || strings.HasSuffix(found[0].Message,
				"requests of the migration widgets-1 fail, and are repeated ("+reason+"): No webhook.") != wants {
				t.Errorf("%s: the findings are %+v", reason, found)
			}
		}
	}
}

// TestWhoMigrates advises a person to create a migration only if the manager does not migrate by itself.
func TestWhoMigrates(t *testing.T) {
	for _, test := range []struct {
		manager assess.Manager
		reason  string
		itself  bool
	}{
		{running, "AwaitingAgreement", true},
		{running, "MigrationQueued", true},
		{running, "MigrationRunning", true},
		{running, "Soaking", false},
		{running, "NotSelectedForMigration", false},
		{running, "MigrationFailed", false},
		{assess.Manager{Running: true, ObservesOnly: true}, "MigrationQueued", false},
		{assess.Manager{Running: true, ObservesOnly: true}, "MigrationSuspended", false},
	} {
		want := "Migrate them first: " + cli.SVM + " migrate widgets.example.com --wait"
		if test.manager.ObservesOnly {
			want = "or migrate as yourself with " + cli.SVM + " run widgets.example.com"
		} else if test.itself {
			want = "The manager migrates them: " + cli.SVM + " status widgets.example.com --watch"
		}
		in := Snapshot{
			Now: now, Manager: test.manager,
			Definitions: []documents.Definition{*widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1")},
			States: []migrationv1alpha1.StorageState{with(state("Widget", "widgets.example.com", "example.com/v1alpha1",
				"example.com/v1"), notMigrated(test.reason))},
		}
		found := decideDrop(in.change("widgets.example.com"), "v1alpha1")
		if len(found) != 1 || !strings.HasSuffix(found[0].Message, want) {
			t.Errorf("%s: got %+v, want %q", test.reason, found, want)
		}
		if got := adviceOn(in, &in.States[0], "old"); !strings.HasSuffix(got, want) {
			t.Errorf("%s: got the advice %q, want %q", test.reason, got, want)
		}
	}
	held := with(state("Widget", "widgets.example.com", "example.com/v1"), notMigrated("MigrationSuspended"))
	if got := adviceToMigrate(running, &held); !strings.HasSuffix(got, cli.SVM+" resume widgets.example.com") {
		t.Errorf("the migration is suspended, and the advice is %q", got)
	}
	paused := with(state("Widget", "widgets.example.com", "example.com/v1"), notMigrated("AwaitingAgreement"))
	paused.Spec.Paused = true
	if got := adviceToMigrate(running, &paused); !strings.HasPrefix(got, "Migrate them first") {
		t.Errorf("the resource is paused, and the advice is %q", got)
	}
}

// TestWhoWritesWhatIsMissing advises to run a manager only if none runs.
func TestWhoWritesWhatIsMissing(t *testing.T) {
	for says, manager := range map[string]assess.Manager{
		"Run svm-controller-manager":                                   {Message: "None runs."},
		"A manager runs, and writes them within two minutes":           {Running: true},
		"The manager that leads has not written them. If a definition": {Running: true, Established: true},
	} {
		for _, missing := range [][]string{nil, {"secrets"}} {
			in := Snapshot{Now: now, Manager: manager, Missing: missing}
			if missing != nil {
				in.States = append(in.States, state("Widget", "widgets.example.com", "example.com/v1"))
			}
			var found Findings
			found.aboutMissing(in)
			if len(found) != 1 || !strings.Contains(found[0].Message, says) {
				t.Errorf("%+v runs, and the findings are %+v", manager, found)
			}
		}
	}
}
