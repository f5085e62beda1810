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

package svmtrigger

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// newShared is the life of a name whose storage another stands for, with a state that was migrated long ago.
func newShared(t *testing.T) *life {
	t.Helper()
	l := newLife(t)
	l.sharedBy = gadgets
	l.in.SharedBy = &v1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com", UID: "gadgets"},
		Status: v1alpha1.StorageStateStatus{
			Epoch: 3, CurrentStorageVersionHash: v1, PersistedStorageVersionHashes: []string{v1},
			Migration: &v1alpha1.MigrationReference{Name: "gadgets-old", UID: "old"},
		},
	}
	l.in.Migrations = []*v1alpha1.StorageVersionMigration{l.ofGadgets("gadgets-old")}
	l.ends(l.in.Migrations[0], v1alpha1.MigrationSucceeded, v1alpha1.MigrationReasonAllObjectsMigrated)
	return l
}

// ofGadgets is a migration in the epoch that the other name has.
func (l *life) ofGadgets(name string) *v1alpha1.StorageVersionMigration {
	epoch := l.in.SharedBy.Status.Epoch
	return &v1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: l.uid()},
		Spec: v1alpha1.StorageVersionMigrationSpec{
			Resource: v1alpha1.GroupVersionResource{Group: "example.com", Resource: "gadgets"},
			Target: &v1alpha1.MigrationTarget{StorageVersionHash: v1, EncodingVersion: "example.com/v1", Epoch: &epoch,
				StorageStateUID: "gadgets"},
		},
	}
}

func TestNameThatIsYoungerThanTheProofOfItsStorage(t *testing.T) {
	l := newShared(t)
	l.settle()
	if len(l.created) > 0 {
		t.Error("a migration was created before the evidence settled")
	}
	l.after(time.Minute)
	m := l.migration()
	if diff := cmp.Diff(l.ofGadgets("").Spec, m.Spec); diff != "" {
		t.Errorf("migration (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(m.Name, "widgets.example.com-") || l.in.State.Status.Migration.UID != m.UID {
		t.Errorf("the migration %s should have a name of its own, and the state %+v refer to it", m.Name,
			l.in.State.Status.Migration)
	}
	l.ends(m, v1alpha1.MigrationFailed, v1alpha1.MigrationReasonObjectsDenied)
	l.after(time.Second)
	if backoff := l.in.State.Status.Backoff; backoff == nil || backoff.Failures != 1 {
		t.Errorf("one failure of its own has to be counted, got %+v", backoff)
	}
	l.after(periods.MinBackoff)
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)
	if len(l.created) != 2 {
		t.Errorf("created %q, want two attempts", l.created)
	}
}

func TestNameWaitsForWhateverMigratesItsStorage(t *testing.T) {
	l := newShared(t)
	l.in.Migrations = append(l.in.Migrations, l.ofGadgets("gadgets-new"))
	l.settle()
	l.after(time.Minute)
	if len(l.created) > 0 {
		t.Errorf("created %q beside a migration of the same objects", l.created)
	}
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)
}

func TestNameIsMigratedWithItsStorage(t *testing.T) {
	l := newShared(t)
	status := &l.in.SharedBy.Status
	status.PersistedStorageVersionHashes = []string{storageversion.Unknown, v1}
	status.Migration = &v1alpha1.MigrationReference{Name: "gadgets-new", UID: "new"}
	l.settle()
	l.after(time.Minute)
	if diff := cmp.Diff(status.Migration, l.in.State.Status.Migration); diff != "" || len(l.created) > 0 {
		t.Errorf("created %q; reference (-want +got):\n%s", l.created, diff)
	}
}
