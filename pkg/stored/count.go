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

package stored

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/json"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Tally is how many objects of one resource are stored in one form.
type Tally struct {
	Place
	Form
	Objects int64
}

// Survey is what was found in etcd.
type Survey struct {
	Revisions
	// Tallies are sorted by place, and then by form.
	Tallies []Tally
	// States are the StorageStates that were found, as of the same revision.
	States []migrationv1alpha1.StorageState
	// StatesUnread is how many StorageStates could not be read, because they are encrypted.
	StatesUnread int
}

// states is where StorageStates are.
var states = Place{Group: migrationv1alpha1.GroupName, Resource: "storagestates"}

// CountOptions say what Count counts.
type CountOptions struct {
	// Prefix is that of all keys of the API servers, for example /registry.
	Prefix string
	// Names are the resources to count, as resource.group. The group may be left out for resources of kube-apiserver. No
	// names means all resources.
	Names []string
	// Keys are encryption keys that the survey must tell apart even if their names have colons, for example aescbc:a:b.
	Keys []string
}

// Count counts objects. It calls progress with the number of objects that were read, now and then.
func Count(ctx context.Context, etcd clientv3.KV, options CountOptions, progress func(objects int64)) (Survey, error) {
	prefix, names := options.Prefix, options.Names
	counts := map[Tally]int64{}
	var survey Survey
	var read int64
	prefixes := []string{strings.TrimSuffix(prefix, "/") + "/"}
	if len(names) > 0 {
		prefixes = foldersOf(prefix, names)
	}
	revisions, err := walk(ctx, etcd, prefixes, func(kv *mvccpb.KeyValue) {
		tally := Tally{Place: placeOf(string(kv.Key), prefix), Form: FormOf(kv.Value).named(kv.Value, options.Keys)}
		if tally.Place == states {
			var state migrationv1alpha1.StorageState
			if tally.Format == JSON && json.Unmarshal(kv.Value, &state) == nil ||
				tally.Format == CBOR && direct.Unmarshal(kv.Value, &state) == nil {
				survey.States = append(survey.States, state)
			} else {
				survey.StatesUnread++
			}
		}
		if len(names) == 0 || tally.isOneOf(names) {
			counts[tally]++
		}
		if read++; read%pageSize == 0 {
			progress(read)
		}
	})
	if err != nil {
		return Survey{}, err
	}
	for _, tally := range slices.SortedFunc(maps.Keys(counts), compareTallies) {
		tally.Objects = counts[tally]
		survey.Tallies = append(survey.Tallies, tally)
	}
	survey.Revisions = revisions
	return survey, nil
}

// HasObjects reports whether an object of a resource was found.
func (s *Survey) HasObjects(name string) bool {
	return slices.ContainsFunc(s.Tallies, func(k Tally) bool { return k.isOneOf([]string{name}) })
}

// Knows reports whether an object or a StorageState of a resource was found.
func (s *Survey) Knows(name string) bool {
	return s.HasObjects(name) ||
		slices.ContainsFunc(s.States, func(state migrationv1alpha1.StorageState) bool { return state.Name == name })
}

// foldersOf returns, in order, the prefixes under which resources with these names may be, and that of the
// StorageStates. None of them contains another.
func foldersOf(prefix string, names []string) []string {
	folders := states.folders(prefix)
	for _, name := range names {
		resource := schema.ParseGroupResource(name)
		folders = append(folders, Place{resource.Group, resource.Resource}.folders(prefix)...)
	}
	slices.Sort(folders)
	var outer []string
	for _, folder := range folders { // A folder comes before those in it.
		if len(outer) == 0 || !strings.HasPrefix(folder, outer[len(outer)-1]) {
			outer = append(outer, folder)
		}
	}
	return outer
}

// group returns the group of the resource, as well as key and bytes tell.
func (t Tally) group() string {
	if t.Group != "" {
		return t.Group
	}
	return schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).Group
}

// isOneOf reports whether one of the names is that of the resource. Most keys of kube-apiserver have no group, and the
// stored object may have another group than its resource, or be encrypted. So in groups of kube-apiserver the name of
// the resource alone decides if the key has no group. Keys of other groups have the group, except those of a few
// aggregated servers: there the group in the object decides.
func (t Tally) isOneOf(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		resource := schema.ParseGroupResource(name)
		return resource.Resource == t.Resource &&
			(resource.Group == "" || t.Group == resource.Group ||
				t.Group == "" && (withoutGroup(resource.Group) || t.group() == resource.Group))
	})
}

// Name returns the name of the resource, with its group as well as that is known.
func (t Tally) Name() string {
	return schema.GroupResource{Group: t.group(), Resource: t.Resource}.String()
}

func compareTallies(a, b Tally) int {
	return cmp.Or(
		cmp.Compare(a.group(), b.group()), cmp.Compare(a.Resource, b.Resource),
		cmp.Compare(a.Group, b.Group), cmp.Compare(a.Format, b.Format), cmp.Compare(a.APIVersion, b.APIVersion),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Key, b.Key),
		cmp.Compare(a.KeyID, b.KeyID),
	)
}

// Unclaimed is a version in which objects are stored, and that their StorageState does not claim.
type Unclaimed struct {
	// StorageState is its name.
	StorageState string `json:"storageState"`
	// Claims are the versions in which it says that objects may be stored.
	Claims  []string `json:"claims"`
	Version string   `json:"version"`
	Objects int64    `json:"objects"`
}

// Unclaimed compares what was found with what the StorageStates claim. Encrypted objects do not tell their version, so
// they cannot be compared.
func (s *Survey) Unclaimed() []Unclaimed {
	found := []Unclaimed{}
	for _, tally := range s.Tallies {
		if tally.APIVersion == "" {
			continue
		}
		hash := storageversion.Hash(schema.FromAPIVersionAndKind(tally.APIVersion, tally.Kind).GroupVersion(), tally.Kind)
		of := s.statesOf(tally)
		claims := func(state *migrationv1alpha1.StorageState) bool {
			persisted := state.Status.PersistedStorageVersionHashes
			return len(persisted) == 0 || slices.Contains(persisted, hash) ||
				slices.Contains(persisted, migrationv1alpha1.Unknown)
		}
		if len(of) == 0 || slices.ContainsFunc(of, claims) {
			continue
		}
		found = append(found, Unclaimed{
			StorageState: of[0].Name, Claims: of[0].Status.PersistedEncodingVersions,
			Version: tally.APIVersion, Objects: tally.Objects,
		})
	}
	return found
}

// statesOf returns the StorageStates that may be about these objects: that of the same group and resource. Objects of
// kube-apiserver may be stored in another group than that of their resource, and then it is one of kube-apiserver with
// the same resource.
func (s *Survey) statesOf(tally Tally) []*migrationv1alpha1.StorageState {
	var sameName []*migrationv1alpha1.StorageState
	for i := range s.States {
		state := &s.States[i]
		resource, evidence := state.GroupResource(), state.Status.Evidence
		switch {
		case resource.Resource != tally.Resource:
		case resource.Group == tally.group():
			return []*migrationv1alpha1.StorageState{state}
		case tally.Group == "" && (evidence == nil || storageversion.FromKubeAPIServers(*evidence)):
			sameName = append(sameName, state)
		}
	}
	return sameName
}
