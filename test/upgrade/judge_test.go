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

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	judgeInterval = 500 * time.Millisecond
	// grace is at how many looks in a row etcd may have an encoding that the state excludes: for 70 seconds, because the
	// manager doubts a state when the documents of a server that came are missing for a minute. It counts looks, not
	// seconds: on a machine on which the manager is slow, the judge is slow too.
	grace = 140
)

// judge compares what etcd has of all resources with what their states say. It reads both from etcd, at one revision.
//
//   - At each look, a state covers every encoding in etcd, or has not covered it for less than the grace.
//   - When an encoding leaves a state, no object is stored in it at the revision of that write.
//   - When a migration succeeds, every object is stored in its target.
type judge struct {
	*cluster

	mu        sync.Mutex
	resources map[schema.GroupKind]schema.GroupResource // by what is stored
	folders   map[schema.GroupResource]string           // where etcd has the objects
	missing   map[string]int                            // at how many looks in a row
	succeeded map[types.UID]bool
	// looks were made, which compared objects; of these were sharp that had a state which excludes something.
	looks, compared, sharp int
	// longest is at how many looks in a row an encoding was missing.
	longest int
	// writes of states and successes of migrations were judged.
	writes, proofs int
}

func newJudge(t *testing.T, c *cluster) *judge {
	t.Helper()
	j := &judge{
		cluster: c, resources: map[schema.GroupKind]schema.GroupResource{}, folders: map[schema.GroupResource]string{},
		missing: map[string]int{}, succeeded: map[types.UID]bool{},
	}
	j.learn(t)
	return j
}

// start looks until the test ends.
func (j *judge) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) { j.look(ctx, t) }, judgeInterval)
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		j.look(context.Background(), t)
		if j.sharp == 0 {
			t.Error("the judge never compared an object with a state that excludes something")
		}
		t.Log(j.report())
	})
}

// report says what was judged.
func (j *judge) report() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprintf("judge: %d looks compared %d objects of %d resources with states, %d of them with states that "+
		"exclude something; an encoding was missing at up to %d looks in a row, %v apart, and %d are allowed; "+
		"%d writes of states and %d successes of migrations were judged",
		j.looks, j.compared, len(j.folders), j.sharp, j.longest, judgeInterval, grace, j.writes, j.proofs)
}

// learn asks the servers which resources are stored as what.
func (j *judge) learn(t *testing.T) {
	t.Helper()
	_, documents, err := j.Kube.Discovery().ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, document := range documents {
		version, err := schema.ParseGroupVersion(document.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range document.APIResources {
			if !strings.Contains(r.Name, "/") {
				j.resources[schema.GroupKind{Group: version.Group, Kind: r.Kind}] = version.WithResource(r.Name).GroupResource()
			}
		}
	}
}

// snapshot is what etcd has at one revision.
type snapshot struct {
	objects    map[schema.GroupResource][]controlplane.StoredObject
	states     map[schema.GroupResource]*v1alpha1.StorageState
	migrations []*migration
}

type migration struct {
	v1alpha1.StorageVersionMigration
	written int64
}

// see reads all of etcd.
func (j *judge) see(ctx context.Context) (*snapshot, error) {
	stored, err := j.StoredUnder(ctx, registry, 0)
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &snapshot{
		objects: map[schema.GroupResource][]controlplane.StoredObject{},
		states:  map[schema.GroupResource]*v1alpha1.StorageState{},
	}
	for _, o := range stored {
		kind := schema.FromAPIVersionAndKind(o.Encoding, o.Kind).GroupKind()
		switch resource := j.resources[kind]; {
		case strings.HasPrefix(o.Key, statePrefix):
			state, err := decode[v1alpha1.StorageState](o)
			if err != nil {
				return nil, err
			}
			s.states[schema.GroupResource(state.Spec.Resource)] = state
		case strings.HasPrefix(o.Key, migrationPrefix):
			m, err := decode[v1alpha1.StorageVersionMigration](o)
			if err != nil {
				return nil, err
			}
			s.migrations = append(s.migrations, &migration{*m, o.ModRevision})
		case resource.Resource != "" && !isInternal(o.Key):
			s.objects[resource] = append(s.objects[resource], o)
			j.folders[resource] = folder(o)
		}
	}
	return s, nil
}

// isInternal tells objects that API servers keep for themselves. No API shows them.
func isInternal(key string) bool {
	return slices.ContainsFunc([]string{"masterleases/", "peerserverleases/", "ranges/"}, func(folder string) bool {
		return strings.HasPrefix(key, registry+folder)
	})
}

// folder is the key of an object without its name and namespace.
func folder(o controlplane.StoredObject) string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + o.Name
	}
	return strings.TrimSuffix(o.Key, name)
}

// look compares everything once.
func (j *judge) look(ctx context.Context, t *testing.T) {
	t.Helper()
	s, err := j.see(ctx)
	if err != nil {
		if ctx.Err() == nil {
			t.Errorf("the judge cannot see: %v", err)
		}
		return
	}
	j.compare(t, s)
	for _, m := range s.migrations {
		j.checkSuccess(ctx, t, m)
	}
}

func (j *judge) compare(t *testing.T, s *snapshot) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.looks++
	missing := map[string]int{}
	for resource, objects := range s.objects {
		state := s.states[resource]
		if state == nil {
			continue
		}
		j.compared += len(objects)
		if certain(state) {
			j.sharp += len(objects)
		}
		for _, o := range excluded(state, objects) {
			what := o.Encoding + " " + resource.String()
			if missing[what] != 0 {
				continue
			}
			missing[what] = j.missing[what] + 1
			j.longest = max(j.longest, missing[what])
			if missing[what] == grace+1 {
				t.Errorf("P1 is broken: %s is stored as %s, which %d looks in a row found missing in %s", o.Key, o.Encoding,
					missing[what], words(state))
			}
		}
	}
	j.missing = missing
}

// checkSuccess judges a migration when it has succeeded, once.
func (j *judge) checkSuccess(ctx context.Context, t *testing.T, m *migration) {
	t.Helper()
	resource := schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
	j.mu.Lock()
	known, folder := j.succeeded[m.UID], j.folders[resource]
	j.mu.Unlock()
	if known || folder == "" || m.Status.Target == nil || !m.IsConditionTrue(v1alpha1.MigrationSucceeded) {
		return
	}
	objects, err := j.StoredUnder(ctx, folder, m.written)
	if err != nil {
		if ctx.Err() == nil {
			t.Errorf("the judge cannot see: %v", err)
		}
		return
	}
	for _, o := range objects {
		if !isInternal(o.Key) && hashOf(o) != m.Status.Target.StorageVersionHash {
			t.Errorf("P2 is broken: migration %s of %s succeeded, and at revision %d %s is stored as %s, not as %+v",
				m.Name, resource, m.written, o.Key, o.Encoding, m.Status.Target)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.succeeded[m.UID] = true
	j.proofs++
}

// covered complains unless the states have every encoding in etcd at one moment.
func (j *judge) covered(ctx context.Context) error {
	s, err := j.see(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for resource, objects := range s.objects {
		if state := s.states[resource]; state == nil {
			errs = append(errs, fmt.Errorf("there is no state of %s", resource))
		} else {
			errs = append(errs, excludes(state, objects))
		}
	}
	return errors.Join(errs...)
}

// replay judges all writes of the states since a revision, at the revision of each write. What left the list must not
// be stored any more. A manager that began after the objects were written must never exclude any of their encodings.
// One that watched hears of a server somewhat later than that begins to write.
func (j *judge) replay(t *testing.T, since int64, watched bool) {
	t.Helper()
	s, err := j.see(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for resource := range s.states {
		j.mu.Lock()
		folder, stored := j.folders[resource]
		j.mu.Unlock()
		if !stored || isEvents(resource) {
			continue
		}
		if err := j.replayOne(t, resource, folder, since, watched); err != nil {
			t.Fatal(err)
		}
	}
}

func (j *judge) replayOne(
	t *testing.T, resource schema.GroupResource, folder string, since int64, watched bool,
) error {
	t.Helper()
	state, written, err := j.stateAt(t.Context(), resource, j.revision(t))
	for err == nil && written > since {
		before, earlier, err := j.stateAt(t.Context(), resource, written-1)
		if errors.Is(err, errNoState) {
			return nil
		}
		if err != nil {
			return err
		}
		j.mu.Lock()
		j.writes++
		j.mu.Unlock()
		if !watched || shrinks(before, state) {
			objects, err := j.StoredUnder(t.Context(), folder, written)
			if err != nil {
				return err
			}
			if complaint := excludes(state, objects); complaint != nil {
				t.Errorf("P1 is broken at revision %d: %v; before: %s", written, complaint, words(before))
			}
		}
		state, written = before, earlier
	}
	return err
}

// nothingFailed wants that no migration failed: nothing about these servers is a reason.
func (c *cluster) nothingFailed(t *testing.T) {
	t.Helper()
	migrations, err := c.Migrations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range migrations.Items {
		if m := &migrations.Items[i]; m.IsConditionTrue(v1alpha1.MigrationFailed) {
			t.Errorf("migration %s failed: %+v", m.Name, m.Status.Conditions)
		}
	}
}

// sorted returns the keys of a map as one string.
func sorted[V any](m map[string]V) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
