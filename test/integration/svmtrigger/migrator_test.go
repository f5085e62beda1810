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
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	migratorInterval = 200 * time.Millisecond
	migratorRetry    = 200 * time.Millisecond
	migratorPage     = 500
)

// behaviour is what the stand-in does with a migration.
type behaviour string

const (
	honest behaviour = "rewrites everything and says so"
	// failing migrations rewrite nothing.
	failing behaviour = "fails"
	// boasting is what a migrator does that does not know of targets and rewrites nothing.
	boasting behaviour = "says that it succeeded, without a target"
	// holding lasts until the stand-in is told something else.
	holding behaviour = "starts and does not end"
)

// migrator is a stand-in for the migrator.
type migrator struct {
	t        *testing.T
	cluster  *cluster
	metadata metadata.Interface

	mu     sync.Mutex
	choose func(gr schema.GroupResource) behaviour
	taken  map[types.UID]bool
}

// startMigrator runs the stand-in until the end of the test.
func startMigrator(t *testing.T, c *cluster) *migrator {
	t.Helper()
	client, err := metadata.NewForConfig(c.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	m := &migrator{
		t: t, cluster: c, metadata: client,
		choose: func(schema.GroupResource) behaviour { return honest },
		taken:  map[types.UID]bool{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			for _, life := range m.untaken() {
				running.Go(func() { m.migrate(ctx, life.last()) })
			}
		}, migratorInterval)
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return m
}

// behave changes what is done with migrations of the resource from now on.
func (m *migrator) behave(r resource, b behaviour) {
	m.mu.Lock()
	defer m.mu.Unlock()
	others := m.choose
	m.choose = func(gr schema.GroupResource) behaviour {
		if gr == r.GroupResource {
			return b
		}
		return others(gr)
	}
}

func (m *migrator) behaviour(gr schema.GroupResource) behaviour {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.choose(gr)
}

func (m *migrator) untaken() []*migrationLife {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*migrationLife
	for _, life := range m.cluster.migrationsAfter(0) {
		if life.deleted == 0 && !life.ended() && !m.taken[life.uid()] {
			m.taken[life.uid()] = true
			found = append(found, life)
		}
	}
	return found
}

// migrate plays one migration to its end, or until it is gone.
func (m *migrator) migrate(ctx context.Context, migration *v1alpha1.StorageVersionMigration) {
	gr := resourceOf(migration)
	if m.behaviour(gr) == boasting {
		m.finish(ctx, migration, v1alpha1.MigrationSucceeded, v1alpha1.MigrationReasonAllObjectsMigrated)
		return
	}
	target := m.target(ctx, migration)
	if target == nil || !m.update(ctx, migration, func(status *v1alpha1.StorageVersionMigrationStatus) {
		now := metav1.Now()
		status.Target, status.StartTime = target, &now
		status.Conditions = []v1alpha1.MigrationCondition{{Type: v1alpha1.MigrationRunning, Status: "True",
			Reason: v1alpha1.MigrationReasonRewriting, LastUpdateTime: now}}
	}) {
		return
	}
	for m.behaviour(gr) == holding {
		if ctx.Err() != nil || m.gone(migration) {
			return
		}
		pause(ctx, migratorRetry)
	}
	if m.behaviour(gr) == failing {
		m.finish(ctx, migration, v1alpha1.MigrationFailed, v1alpha1.MigrationReasonObjectsDenied)
		return
	}
	// A migration of the trigger has a version that all servers serve. For others the target's will do.
	encoding := schema.FromAPIVersionAndKind(target.EncodingVersion, "")
	client := m.metadata.Resource(gr.WithVersion(cmp.Or(migration.Spec.Resource.Version, encoding.Version)))
	if !m.rewriteAll(ctx, migration, client) {
		return
	}
	if state := m.stateOf(gr); state == nil || state.Status.CurrentStorageVersionHash != target.StorageVersionHash {
		m.finish(ctx, migration, v1alpha1.MigrationFailed, v1alpha1.MigrationReasonTargetChanged)
		return
	}
	m.finish(ctx, migration, v1alpha1.MigrationSucceeded, v1alpha1.MigrationReasonAllObjectsMigrated)
}

// target is what the migration is to bring objects to. One that was made by hand waits until the manager's state tells:
// a state without an epoch is of another controller.
func (m *migrator) target(ctx context.Context, migration *v1alpha1.StorageVersionMigration) *v1alpha1.MigrationTarget {
	if migration.Spec.Target != nil {
		return migration.Spec.Target
	}
	for ctx.Err() == nil && !m.gone(migration) {
		state := m.stateOf(resourceOf(migration))
		if state != nil && state.Status.Epoch > 0 && state.Status.CurrentStorageVersionHash != "" &&
			state.Status.CurrentStorageVersionHash != v1alpha1.Unknown {
			return &v1alpha1.MigrationTarget{
				StorageVersionHash: state.Status.CurrentStorageVersionHash, EncodingVersion: state.Status.CurrentEncodingVersion,
				Epoch: &state.Status.Epoch, StorageStateUID: state.UID,
			}
		}
		pause(ctx, migratorRetry)
	}
	return nil
}

func (m *migrator) stateOf(gr schema.GroupResource) *v1alpha1.StorageState {
	return m.cluster.state(gr.String())
}

func (m *migrator) gone(migration *v1alpha1.StorageVersionMigration) bool {
	return !m.cluster.exists(migration.UID)
}

// rewriteAll writes every object without changing it, and returns false if the migration went meanwhile.
func (m *migrator) rewriteAll(
	ctx context.Context, migration *v1alpha1.StorageVersionMigration, client metadata.Getter,
) bool {
	for !tryRewriteAll(ctx, client) {
		if ctx.Err() != nil || m.gone(migration) {
			return false
		}
		pause(ctx, migratorRetry)
	}
	return true
}

func tryRewriteAll(ctx context.Context, client metadata.Getter) bool {
	options := metav1.ListOptions{Limit: migratorPage}
	for {
		list, err := client.List(ctx, options)
		if err != nil {
			return false
		}
		for i := range list.Items {
			item := &list.Items[i]
			_, err := client.Namespace(item.Namespace).Patch(ctx, item.Name, types.MergePatchType, []byte("{}"),
				metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return false
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return true
		}
	}
}

func (m *migrator) finish(ctx context.Context, migration *v1alpha1.StorageVersionMigration,
	condition v1alpha1.MigrationConditionType, reason string) {
	m.update(ctx, migration, func(status *v1alpha1.StorageVersionMigrationStatus) {
		now := metav1.Now()
		status.CompletionTime = &now
		status.Conditions = []v1alpha1.MigrationCondition{
			{Type: v1alpha1.MigrationRunning, Status: "False", Reason: v1alpha1.MigrationReasonFinished, LastUpdateTime: now},
			{Type: condition, Status: "True", Reason: reason, Message: fmt.Sprintf("the stand-in says %s", condition),
				LastUpdateTime: now},
		}
	})
}

// update changes the status until that works, and returns false if the migration is gone, or has ended without it.
func (m *migrator) update(ctx context.Context, migration *v1alpha1.StorageVersionMigration,
	change func(*v1alpha1.StorageVersionMigrationStatus)) bool {
	client := m.cluster.Migrations()
	for ctx.Err() == nil {
		present, err := client.Get(ctx, migration.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (present.UID != migration.UID || present.Finished()) {
			return false
		}
		if err == nil {
			change(&present.Status)
			if _, err = client.UpdateStatus(ctx, present, metav1.UpdateOptions{}); err == nil {
				return true
			}
		}
		if apierrors.IsInvalid(err) || meta.IsNoMatchError(err) {
			m.t.Errorf("the stand-in cannot write migration %s: %v", migration.Name, err)
			return false
		}
		pause(ctx, migratorRetry)
	}
	return false
}

func pause(ctx context.Context, period time.Duration) {
	select {
	case <-time.After(period):
	case <-ctx.Done():
	}
}
