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

package releases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// resource is a resource, and where etcd has its objects.
type resource struct {
	schema.GroupResource
	prefix string
}

var (
	bindings = resource{
		schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"},
		"/registry/mutatingadmissionpolicybindings/",
	}
	classes = resource{
		schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattributesclasses"},
		"/registry/volumeattributesclasses/",
	}
)

// statePrefix is where etcd has StorageStates.
const statePrefix = "/registry/" + v1alpha1.GroupName + "/storagestates/"

// revision is the present revision of etcd: what is written later has a greater one.
func (c *cluster) revision(t *testing.T) int64 {
	t.Helper()
	response, err := c.Etcd().Client().Get(t.Context(), "revision")
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Revision
}

// forget compacts etcd, and returns the present revision, which is the oldest one that can be read from now on.
func (c *cluster) forget(t *testing.T) int64 {
	t.Helper()
	now := c.revision(t)
	if _, err := c.Etcd().Client().Compact(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	return now
}

// stateAt reads the state of a resource from etcd as of a revision, and when it was written.
func (c *cluster) stateAt(
	ctx context.Context, r resource, revision int64,
) (state *v1alpha1.StorageState, written int64, err error) {
	stored, err := c.StoredUnder(ctx, statePrefix+r.String(), revision)
	if err != nil {
		return nil, 0, err
	}
	if len(stored) == 0 {
		return nil, 0, fmt.Errorf("there is no state of %s", r)
	}
	state = &v1alpha1.StorageState{}
	return state, stored[0].ModRevision, json.Unmarshal(stored[0].Raw, state)
}

// uncovered complains about objects that are stored, as of a revision, in an encoding that a state excludes.
func (c *cluster) uncovered(ctx context.Context, r resource, state *v1alpha1.StorageState, revision int64) error {
	objects, err := c.StoredUnder(ctx, r.prefix, revision)
	if err != nil {
		return err
	}
	return excludes(state, objects)
}

// excludes complains about objects in an encoding that a state excludes.
func excludes(state *v1alpha1.StorageState, objects []controlplane.StoredObject) error {
	persisted := state.Status.PersistedStorageVersionHashes
	if len(persisted) == 0 || slices.Contains(persisted, v1alpha1.Unknown) {
		return nil
	}
	for _, o := range objects {
		gvk := schema.FromAPIVersionAndKind(o.Encoding, o.Kind)
		if !slices.Contains(persisted, discovery.StorageVersionHash(gvk.Group, gvk.Version, gvk.Kind)) {
			return fmt.Errorf("%s is stored as %s, which is not in %s", o.Key, o.Encoding, words(state))
		}
	}
	return nil
}

// covered complains unless the states have every encoding in etcd at one moment.
func (c *cluster) covered(ctx context.Context) error {
	now, err := c.Etcd().Client().Get(ctx, "revision")
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range []resource{bindings, classes} {
		state, _, err := c.stateAt(ctx, r, now.Header.Revision)
		if err == nil {
			err = c.uncovered(ctx, r, state, now.Header.Revision)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// judge judges all writes of the states since a revision, at the revision of each write. What left the list must not be
// stored any more. A manager that began after the objects were written must never exclude any of their encodings. One
// that watched hears of a server somewhat later than that begins to write.
func (c *cluster) judge(t *testing.T, since int64, watched bool) {
	t.Helper()
	for _, r := range []resource{bindings, classes} {
		state, written, err := c.stateAt(t.Context(), r, c.revision(t))
		writes := 0
		for ; err == nil && written > since; writes++ {
			before, earlier, errBefore := c.stateAt(t.Context(), r, written-1)
			if errBefore != nil {
				err = errBefore
				break
			}
			if !watched || shrinks(before, state) {
				if excluded := c.uncovered(t.Context(), r, state, written); excluded != nil {
					t.Errorf("P1 is broken at revision %d: %v; before: %s", written, excluded, words(before))
				}
			}
			state, written = before, earlier
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d writes of the state were judged", r, writes)
	}
}

// shrinks reports whether a write takes an encoding off the list.
func shrinks(before, after *v1alpha1.StorageState) bool {
	was := before.Status.PersistedStorageVersionHashes
	return len(was) == 0 || slices.ContainsFunc(was, func(hash string) bool {
		return !slices.Contains(after.Status.PersistedStorageVersionHashes, hash)
	})
}

// migratedBy complains unless all states were written since a revision because of servers of a release, and say that
// every object is stored in the encoding that these write, and etcd says the same. Resources that these do not serve
// are left out.
func (c *cluster) migratedBy(ctx context.Context, name string, since int64) error {
	states, err := c.States().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	const fewest = 50
	if len(states.Items) < fewest {
		return fmt.Errorf("there are only %d states", len(states.Items))
	}
	for i := range states.Items {
		state := &states.Items[i]
		served := !meta.IsStatusConditionFalse(state.Status.Conditions, v1alpha1.StorageStateServed)
		if !served || state.Spec.Resource.Resource == "events" { // Events are not rewritten. They expire.
			continue
		}
		migrated := meta.IsStatusConditionTrue(state.Status.Conditions, v1alpha1.StorageStateMigrated)
		if !migrated || !seenBy(state, name, since) {
			return fmt.Errorf("not migrated by servers of %s: %s", name, words(state))
		}
	}
	for i := range states.Items {
		gr := schema.GroupResource(states.Items[i].Spec.Resource)
		objects, err := c.Stored(ctx, gr)
		if err == nil {
			err = excludes(&states.Items[i], objects)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// seenBy reports whether what a state says was read from servers of a release since a revision, or not from servers.
func seenBy(state *v1alpha1.StorageState, name string, since int64) bool {
	evidence := state.Status.Evidence
	if evidence == nil || len(evidence.Endpoints) == 0 {
		return evidence != nil
	}
	written, err := strconv.ParseInt(state.ResourceVersion, 10, 64)
	return err == nil && written > since &&
		!slices.ContainsFunc(evidence.Endpoints, func(endpoint v1alpha1.EndpointEvidence) bool {
			return !strings.HasPrefix(endpoint.ServerVersion, "v"+name+".")
		})
}

// words is what the state says.
func words(state *v1alpha1.StorageState) string {
	status, err := json.Marshal(state.Status)
	if err != nil {
		return err.Error()
	}
	return state.Name + ": " + string(status)
}
