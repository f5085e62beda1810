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
	"testing"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
)

// TestReasonOfTheLastRun has a migration that was postponed, and whose status may have changed since.
func TestReasonOfTheLastRun(t *testing.T) {
	stuck := runMemory{stuck: true}
	inTree := waitDecision(migrationv1alpha1.MigrationReasonAwaitingInTree, "a\nb")
	postponed := runMemory{whyPostponed: &inTree}
	for phase, want := range map[rewrite.Phase]bool{
		rewrite.Stuck: true, rewrite.RetryingRequests: false, rewrite.Rewriting: false,
	} {
		m := &migrationv1alpha1.StorageVersionMigration{}
		running(boundTo(3), rewrite.Report{Phase: phase})(&m.Status, time.Now())
		if got := stuck.saysStuck(&m.Status); got != want || (&runMemory{}).saysStuck(&m.Status) {
			t.Errorf("the status with %s says why the run made no progress: %v", phase, got)
		}
	}
	for says, want := range map[Decision]bool{
		inTree: true,
		waitDecision(migrationv1alpha1.MigrationReasonAwaitingInTree, "another one runs"): false,
		waitDecision(migrationv1alpha1.MigrationReasonSuspended, "a\nb"):                  false,
	} {
		m := &migrationv1alpha1.StorageVersionMigration{}
		if postponed.saysPostponed(&m.Status) {
			t.Error("an empty status says why the migration was postponed")
		}
		waiting(says)(&m.Status, time.Now())
		if got := postponed.saysPostponed(&m.Status); got != want {
			t.Errorf("the status with %v says why the migration was postponed: %v", says, got)
		}
		if (&runMemory{}).saysPostponed(&m.Status) || stuck.saysStuck(&m.Status) {
			t.Errorf("the status with %v is about a run that was not postponed, or that made progress", says)
		}
	}
}
