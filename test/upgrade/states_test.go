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

const (
	// registry is where etcd has everything.
	registry        = "/registry/"
	statePrefix     = registry + v1alpha1.GroupName + "/storagestates/"
	migrationPrefix = registry + v1alpha1.GroupName + "/storageversionmigrations/"

	admissionGroup = "admissionregistration.k8s.io"
)

var (
	bindings = schema.GroupResource{Group: admissionGroup, Resource: "mutatingadmissionpolicybindings"}
	classes  = schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}

	errNoState = errors.New("there is no state")
)

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
	ctx context.Context, r schema.GroupResource, revision int64,
) (state *v1alpha1.StorageState, written int64, err error) {
	stored, err := c.StoredUnder(ctx, statePrefix+r.String(), revision)
	if err != nil {
		return nil, 0, err
	}
	for _, o := range stored {
		if o.Name == r.String() {
			state, err = decode[v1alpha1.StorageState](o)
			return state, o.ModRevision, err
		}
	}
	return nil, 0, fmt.Errorf("%w of %s", errNoState, r)
}

// decode reads an object of our definitions, which etcd has as JSON.
func decode[T any](o controlplane.StoredObject) (*T, error) {
	object := new(T)
	if err := json.Unmarshal(o.Raw, object); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", o.Key, err)
	}
	return object, nil
}

// hashOf is the hash of the encoding of a stored object.
func hashOf(o controlplane.StoredObject) string {
	gvk := schema.FromAPIVersionAndKind(o.Encoding, o.Kind)
	return discovery.StorageVersionHash(gvk.Group, gvk.Version, gvk.Kind)
}

// isEvents tells events, which are not rewritten: they expire.
func isEvents(r schema.GroupResource) bool { return r.Resource == "events" }

// certain reports whether a state excludes any encoding.
func certain(state *v1alpha1.StorageState) bool {
	persisted := state.Status.PersistedStorageVersionHashes
	return len(persisted) > 0 && !slices.Contains(persisted, v1alpha1.Unknown)
}

// excluded returns the objects in an encoding that a state excludes.
func excluded(state *v1alpha1.StorageState, objects []controlplane.StoredObject) (out []controlplane.StoredObject) {
	if !certain(state) {
		return nil
	}
	for _, o := range objects {
		if !isInternal(o.Key) && !slices.Contains(state.Status.PersistedStorageVersionHashes, hashOf(o)) {
			out = append(out, o)
		}
	}
	return out
}

// excludes complains about objects in an encoding that a state excludes.
func excludes(state *v1alpha1.StorageState, objects []controlplane.StoredObject) error {
	if out := excluded(state, objects); len(out) > 0 {
		return fmt.Errorf("%s is stored as %s, which is not in %s", out[0].Key, out[0].Encoding, words(state))
	}
	return nil
}

// shrinks reports whether a write takes an encoding off the list.
func shrinks(before, after *v1alpha1.StorageState) bool {
	was := before.Status.PersistedStorageVersionHashes
	return len(was) == 0 || slices.ContainsFunc(was, func(hash string) bool {
		return !slices.Contains(after.Status.PersistedStorageVersionHashes, hash)
	})
}

// migratedBy complains unless all states were written since a revision because of servers of a release, and say that
// every object is stored in the encoding that these write, and etcd says the same. Resources that these do not serve,
// and those of groups that the manager leaves out, do not count.
func (c *cluster) migratedBy(ctx context.Context, name string, since int64, leftOut ...string) error {
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
		resource := schema.GroupResource(state.Spec.Resource)
		if !served || isEvents(resource) || slices.Contains(leftOut, resource.Group) {
			continue
		}
		migrated := meta.IsStatusConditionTrue(state.Status.Conditions, v1alpha1.StorageStateMigrated)
		if !migrated || !seenBy(state, name, since) {
			return fmt.Errorf("not migrated by servers of %s: %s", name, words(state))
		}
	}
	for i := range states.Items {
		objects, err := c.Stored(ctx, schema.GroupResource(states.Items[i].Spec.Resource))
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
