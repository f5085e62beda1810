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

package simulation

import (
	"errors"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// What the API server answers when it does not do what it is asked for.
var (
	errConflict    = errors.New("conflict")
	errMissing     = errors.New("not found")
	errExists      = errors.New("already exists")
	errUnavailable = errors.New("unavailable")
)

// apiServer keeps the objects of our own API. What it returns and tells of is never changed again.
type apiServer struct {
	w       *world
	version int

	states     map[string]*migrationv1alpha1.StorageState
	migrations map[string]*migrationv1alpha1.StorageVersionMigration

	// Until awayUntil the manager's writes fail. If answers get lost they are done all the same. What failed is tried
	// again a minute later at the latest: until backAt.
	awayUntil, backAt time.Time
	losesAnswers      bool
	// writes counts what the manager wrote, by name of the state.
	writes map[string]int
}

func newAPIServer(w *world) *apiServer {
	return &apiServer{
		w: w, version: 100, states: map[string]*migrationv1alpha1.StorageState{},
		migrations: map[string]*migrationv1alpha1.StorageVersionMigration{}, writes: map[string]int{},
	}
}

func (a *apiServer) nextVersion() string {
	a.version++
	return strconv.Itoa(a.version)
}

// goAway makes the manager's writes fail for a while.
func (a *apiServer) goAway(d time.Duration, losesAnswers bool) {
	a.w.log("the API server fails, losing answers: %v", losesAnswers)
	a.awayUntil, a.losesAnswers = a.w.now.Add(d), losesAnswers
	a.failUntil(a.awayUntil)
}

// failUntil notes when writes fail for the last time.
func (a *apiServer) failUntil(last time.Time) {
	if back := last.Add(maxRetry); back.After(a.backAt) {
		a.backAt = back
		a.w.plan.plan(back, a.w.feeds.reckon)
	}
	a.w.feeds.reckon()
}

// failing says whether writes fail, or failed so lately that the manager does not try again yet.
func (a *apiServer) failing() bool { return a.w.unserved || a.w.now.Before(a.backAt) }

// noteServers notices when the last server that answers requests goes, and when the first one comes. No request is
// answered meanwhile, and no watch goes on.
func (a *apiServer) noteServers() {
	w := a.w
	unserved := !slices.ContainsFunc(w.cluster.servers, func(s *server) bool {
		return !s.frozen && (s.accepts || !s.leaves)
	})
	if unserved == w.unserved {
		return
	}
	w.log("no API server answers: %v", unserved)
	w.unserved = unserved
	if unserved {
		w.feeds.cutAll(time.Second, true)
	} else {
		a.failUntil(w.now)
	}
	w.feeds.reckon()
}

// request does what the manager asks for, unless the API server is away.
func (a *apiServer) request(do func() error) error {
	if a.w.unserved {
		return errUnavailable
	}
	if !a.w.now.Before(a.awayUntil) {
		return do()
	}
	if a.losesAnswers {
		_ = do() // Whoever asked does not get to know.
	}
	return errUnavailable
}

func (a *apiServer) createState(
	name string, spec migrationv1alpha1.StorageStateSpec, annotations map[string]string,
) (*migrationv1alpha1.StorageState, error) {
	if a.states[name] != nil {
		return nil, errExists
	}
	version := a.nextVersion()
	state := &migrationv1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("state-" + version), ResourceVersion: version,
			Annotations: annotations},
		Spec: spec,
	}
	a.putState(state)
	return state, nil
}

// updateState changes the status of the very state that is given.
func (a *apiServer) updateState(
	state *migrationv1alpha1.StorageState, status migrationv1alpha1.StorageStateStatus,
) (*migrationv1alpha1.StorageState, error) {
	live := a.states[state.Name]
	switch {
	case live == nil:
		return nil, errMissing
	case live.UID != state.UID || live.ResourceVersion != state.ResourceVersion:
		return nil, errConflict
	}
	if err := validateUpdate(&live.Status, &status); err != nil {
		a.w.violated("the API server refuses a status of %s: %v\nold: %s\nnew: %s", state.Name, err,
			statusInWords(&live.Status), statusInWords(&status))
		return nil, err
	}
	after := *live
	after.Status = status
	after.ResourceVersion = a.nextVersion()
	a.putState(&after)
	return &after, nil
}

// writeForeignState is what a controller does that knows no epochs. It does not touch states that have one.
func (a *apiServer) writeForeignState(resource schema.GroupResource) {
	live := a.states[resource.String()]
	if live == nil {
		spec := migrationv1alpha1.StorageStateSpec{
			Resource: migrationv1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource},
		}
		live, _ = a.createState(resource.String(), spec, nil)
	}
	if live.Status.Epoch > 0 {
		return
	}
	a.w.log("another controller writes the state of %s", resource.Resource)
	after := *live
	hash := aggregatedEncodings[0]
	after.Status.PersistedStorageVersionHashes, after.Status.CurrentStorageVersionHash = []string{hash}, hash
	after.ResourceVersion = a.nextVersion()
	a.putState(&after)
}

// annotate is what people do.
func (a *apiServer) annotate(name, key, value string) {
	live := a.states[name]
	if live == nil {
		return
	}
	after := *live
	after.Annotations = map[string]string{}
	for k, v := range live.Annotations {
		after.Annotations[k] = v
	}
	after.Annotations[key] = value
	if value == "" {
		delete(after.Annotations, key)
	}
	after.ResourceVersion = a.nextVersion()
	a.putState(&after)
}

// deleteState deletes the state if it is still the one that is given; whichever it is if none is.
func (a *apiServer) deleteState(name string, state *migrationv1alpha1.StorageState) error {
	live := a.states[name]
	switch {
	case live == nil:
		return errMissing
	case state != nil && (live.UID != state.UID || live.ResourceVersion != state.ResourceVersion):
		return errConflict
	}
	a.w.log("state %s is deleted", name)
	a.nextVersion()
	delete(a.states, name)
	a.tell(streamStates, func(m *manager) { m.cacheState(name, nil) })
	return nil
}

func (a *apiServer) putState(state *migrationv1alpha1.StorageState) {
	if a.w.tell != nil {
		a.w.log("state %s: %s", state.Name, statusInWords(&state.Status))
	}
	a.states[state.Name] = state
	a.w.store.changed = true
	a.w.judge.recorded(state)
	a.tell(streamStates, func(m *manager) { m.cacheState(state.Name, state) })
}

func (a *apiServer) createMigration(migration *migrationv1alpha1.StorageVersionMigration) error {
	if a.migrations[migration.Name] != nil {
		return errExists
	}
	version := a.nextVersion()
	created := migration.DeepCopy()
	created.UID, created.ResourceVersion = types.UID("migration-"+version), version
	created.CreationTimestamp = metav1.NewTime(a.w.now.Truncate(time.Second))
	created.Status = migrationv1alpha1.StorageVersionMigrationStatus{}
	a.putMigration(created)
	a.w.migrant.wake()
	return nil
}

// updateMigration changes the status of a migration, if it is still there.
func (a *apiServer) updateMigration(
	name string, uid types.UID, change func(*migrationv1alpha1.StorageVersionMigrationStatus),
) bool {
	live := a.migrations[name]
	if live == nil || live.UID != uid {
		return false
	}
	after := live.DeepCopy()
	change(&after.Status)
	after.ResourceVersion = a.nextVersion()
	a.putMigration(after)
	return true
}

func (a *apiServer) deleteMigration(name string, uid types.UID) error {
	live := a.migrations[name]
	switch {
	case live == nil:
		return errMissing
	case live.UID != uid:
		return errConflict
	}
	a.w.log("migration %s is deleted", name)
	a.nextVersion()
	delete(a.migrations, name)
	a.tell(streamMigrations, func(m *manager) { m.cacheMigration(name, live, nil) })
	return nil
}

func (a *apiServer) putMigration(migration *migrationv1alpha1.StorageVersionMigration) {
	if a.w.tell != nil {
		a.w.log("migration %s: %s", migration.Name, migrationInWords(migration))
	}
	a.migrations[migration.Name] = migration
	a.tell(streamMigrations, func(m *manager) { m.cacheMigration(migration.Name, nil, migration) })
}

// tell tells the manager of a change, and of the version that its cache then has.
func (a *apiServer) tell(on stream, what told) {
	version := a.version
	a.w.feeds.publish(on, func(m *manager) {
		m.seen[on] = version
		what(m)
	})
}
