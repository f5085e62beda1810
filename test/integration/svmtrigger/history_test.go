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
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	apiPrefix        = "/registry/migration.k8s.io/"
	statesPrefix     = apiPrefix + "storagestates/"
	migrationsPrefix = apiPrefix + "storageversionmigrations/"
)

// history is every write of StorageStates and migrations, as etcd saw them. Nothing that was written and changed back
// goes unseen, and it does not depend on an API server being up.
type history struct {
	mu         sync.Mutex
	states     map[string][]stateWrite
	migrations []*migrationLife
	byKey      map[string]*migrationLife // those that exist
	broken     error
}

// stateWrite is one write of a StorageState. The state is nil if it was deleted.
type stateWrite struct {
	revision int64
	seen     time.Time
	state    *v1alpha1.StorageState
}

// migrationLife is one StorageVersionMigration from its creation on.
type migrationLife struct {
	created, deleted int64 // revisions; deleted is zero while it exists
	seen             time.Time
	writes           []migrationWrite
}

type migrationWrite struct {
	revision  int64
	migration *v1alpha1.StorageVersionMigration
}

// last is the migration as it is, or was when it was deleted.
func (l *migrationLife) last() *v1alpha1.StorageVersionMigration {
	return l.writes[len(l.writes)-1].migration
}

func (l *migrationLife) uid() types.UID { return l.last().UID }

func (l *migrationLife) ended() bool {
	m := l.last()
	return hasCondition(m, v1alpha1.MigrationSucceeded) || hasCondition(m, v1alpha1.MigrationFailed)
}

func (l *migrationLife) String() string {
	return fmt.Sprintf("%s (created %s, deleted=%t, conditions %v)", l.last().Name, l.seen.Format(clockFormat),
		l.deleted > 0, l.last().Status.Conditions)
}

// startHistory records from now until the end of the test.
func startHistory(t *testing.T, cp *controlplane.ControlPlane) *history {
	t.Helper()
	h := &history{states: map[string][]stateWrite{}, byKey: map[string]*migrationLife{}}
	ctx, cancel := context.WithCancel(context.Background())
	watch := cp.Etcd().Client().Watch(ctx, apiPrefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if created := <-watch; created.Err() != nil {
		t.Fatal(created.Err())
	}
	var running sync.WaitGroup
	running.Go(func() {
		for response := range watch {
			if err := h.take(response); err != nil && ctx.Err() == nil {
				h.mu.Lock()
				h.broken = err
				h.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if h.broken != nil {
			t.Errorf("the history has a gap: %v", h.broken)
		}
	})
	return h
}

func (h *history) take(response clientv3.WatchResponse) error {
	if err := response.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, event := range response.Events {
		key := string(event.Kv.Key)
		var err error
		if name, isState := strings.CutPrefix(key, statesPrefix); isState {
			err = h.takeState(name, event)
		} else if strings.HasPrefix(key, migrationsPrefix) {
			err = h.takeMigration(key, event)
		}
		if err != nil {
			return fmt.Errorf("decoding %s: %w", key, err)
		}
	}
	return nil
}

func (h *history) takeState(name string, event *clientv3.Event) error {
	write := stateWrite{revision: event.Kv.ModRevision, seen: time.Now()}
	if event.Type != clientv3.EventTypeDelete {
		write.state = &v1alpha1.StorageState{}
		if err := json.Unmarshal(event.Kv.Value, write.state); err != nil {
			return err
		}
	}
	h.states[name] = append(h.states[name], write)
	return nil
}

func (h *history) takeMigration(key string, event *clientv3.Event) error {
	if event.Type == clientv3.EventTypeDelete {
		if life := h.byKey[key]; life != nil {
			life.deleted = event.Kv.ModRevision
			delete(h.byKey, key)
		}
		return nil
	}
	m := &v1alpha1.StorageVersionMigration{}
	if err := json.Unmarshal(event.Kv.Value, m); err != nil {
		return err
	}
	life := h.byKey[key]
	if life == nil {
		life = &migrationLife{created: event.Kv.CreateRevision, seen: time.Now()}
		h.byKey[key] = life
		h.migrations = append(h.migrations, life)
	}
	life.writes = append(life.writes, migrationWrite{revision: event.Kv.ModRevision, migration: m})
	return nil
}

// state is the state of that name, nil if there is none.
func (h *history) state(name string) *v1alpha1.StorageState {
	h.mu.Lock()
	defer h.mu.Unlock()
	writes := h.states[name]
	if len(writes) == 0 {
		return nil
	}
	return writes[len(writes)-1].state
}

// stateWrites are the writes of the state of that name after a revision.
func (h *history) stateWrites(name string, after int64) []stateWrite {
	h.mu.Lock()
	defer h.mu.Unlock()
	var writes []stateWrite
	for _, write := range h.states[name] {
		if write.revision > after {
			writes = append(writes, write)
		}
	}
	return writes
}

// stateAt is the state of that name as of a revision, nil if there was none.
func (h *history) stateAt(name string, revision int64) *v1alpha1.StorageState {
	var state *v1alpha1.StorageState
	for _, write := range h.stateWrites(name, 0) {
		if write.revision <= revision {
			state = write.state
		}
	}
	return state
}

// lifeOf tells of every write of the state of that name from what it was at a revision on.
func (h *history) lifeOf(name string, since int64) string {
	var life strings.Builder
	fmt.Fprintf(&life, "at first: %s", words(h.stateAt(name, since)))
	for _, write := range h.stateWrites(name, since) {
		fmt.Fprintf(&life, "\n%s: %s", write.seen.Format(clockFormat), words(write.state))
	}
	return life.String()
}

// allStates are all that exist, by name.
func (h *history) allStates() map[string]*v1alpha1.StorageState {
	h.mu.Lock()
	defer h.mu.Unlock()
	existing := map[string]*v1alpha1.StorageState{}
	for name, writes := range h.states {
		if last := writes[len(writes)-1].state; last != nil {
			existing[name] = last
		}
	}
	return existing
}

// migrationsAfter are copies of all that were created after a revision, whether they still exist or not.
func (h *history) migrationsAfter(revision int64) []*migrationLife {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lives []*migrationLife
	for _, life := range h.migrations {
		if life.created > revision {
			snapshot := *life
			snapshot.writes = slices.Clone(life.writes)
			lives = append(lives, &snapshot)
		}
	}
	return lives
}

// exists says that a migration was created and not deleted.
func (h *history) exists(uid types.UID) bool {
	return slices.ContainsFunc(h.migrationsAfter(0),
		func(life *migrationLife) bool { return life.uid() == uid && life.deleted == 0 })
}

// migrationsOf are those of one resource that were created after a revision.
func (h *history) migrationsOf(gr schema.GroupResource, after int64) []*migrationLife {
	return slices.DeleteFunc(h.migrationsAfter(after),
		func(life *migrationLife) bool { return resourceOf(life.last()) != gr })
}

func resourceOf(m *v1alpha1.StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
}

func hasCondition(m *v1alpha1.StorageVersionMigration, kind v1alpha1.MigrationConditionType) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c v1alpha1.MigrationCondition) bool {
		return c.Type == kind && c.Status == "True"
	})
}
