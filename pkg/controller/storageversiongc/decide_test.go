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

package storageversiongc

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storageversion"
)

var epoch = time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)

// at is a number of seconds after the epoch.
func at(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

func entry(serverID, encoding string) apiserverinternalv1alpha1.ServerStorageVersion {
	return apiserverinternalv1alpha1.ServerStorageVersion{
		APIServerID:       serverID,
		EncodingVersion:   encoding,
		DecodableVersions: []string{"v1", "v1beta1"},
		ServedVersions:    []string{"v1"},
	}
}

// published is an object as API servers leave it.
func published(name string, entries ...serverEntry) *apiserverinternalv1alpha1.StorageVersion {
	object := &apiserverinternalv1alpha1.StorageVersion{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7"},
		Status:     apiserverinternalv1alpha1.StorageVersionStatus{StorageVersions: entries},
	}
	if len(entries) > 0 {
		storageversion.SetCommonEncodingVersion(object)
	}
	return object
}

func terminating(object *apiserverinternalv1alpha1.StorageVersion) *apiserverinternalv1alpha1.StorageVersion {
	object = object.DeepCopy()
	object.DeletionTimestamp = &metav1.Time{Time: epoch}
	return object
}

func created(
	object *apiserverinternalv1alpha1.StorageVersion, seconds float64,
) *apiserverinternalv1alpha1.StorageVersion {
	object = object.DeepCopy()
	object.CreationTimestamp = metav1.Time{Time: at(seconds)}
	return object
}

func objects(o ...*apiserverinternalv1alpha1.StorageVersion) []*apiserverinternalv1alpha1.StorageVersion {
	return o
}

func missedSince(t time.Time, ids ...string) map[string]time.Time {
	m := map[string]time.Time{}
	for _, id := range ids {
		m[id] = t
	}
	return m
}

// Leases of these tests' servers: "living..." exist, "gone..." do not.
func TestDecide(t *testing.T) {
	var (
		living  = entry("living", "v1")
		living2 = entry("living-2", "v1beta1")
		gone    = entry("gone", "v1beta1")
		gone2   = entry("gone-2", "v1")
		mixed   = published("apps.mixed", living, gone)
		allGone = published("apps.allgone", gone, gone2)
		oneGone = published("apps.onegone", gone)
		healthy = published("apps.healthy", living, living2)
		empty   = published("apps.empty")
		none    = sets.New[reason]()
	)
	tests := []struct {
		name string
		// obs begins at 99.9 s and ends at 100 s.
		obs  observation
		want decision
	}{{
		name: "servers that live, agreeing or not, are left alone",
		obs: observation{
			storageVersions: objects(healthy),
		},
		want: decision{heldBy: none, next: recheckInterval,
			memory: memory{at: at(100), absentSince: missedSince(at(0))}},
	}, {
		name: "a lease missing for the first time is remembered, and nothing else",
		obs: observation{
			storageVersions: objects(mixed),
			absent:          sets.New("gone"),
		},
		want: decision{heldBy: sets.New(inGrace), next: probeInterval,
			memory: memory{at: at(100), absentSince: missedSince(at(100), "gone")}},
	}, {
		name: "a lease missing for less than the grace, if only just, is waited for",
		obs: observation{
			storageVersions: objects(mixed),
			absent:          sets.New("gone"),
			remembered:      memory{at: at(99), absentSince: missedSince(at(85), "gone")},
		},
		want: decision{heldBy: sets.New(inGrace), next: probeInterval,
			memory: memory{at: at(100), absentSince: missedSince(at(85), "gone")}},
	}, {
		name: "a lease missing for the grace: the object gets a marker first, and is looked at again at once",
		obs: observation{
			storageVersions: objects(mixed),
			absent:          sets.New("gone"),
			remembered:      memory{at: at(99), absentSince: missedSince(at(84.9), "gone")},
		},
		want: decision{heldBy: none, next: 0,
			effects: []effect{{action: putMarker, reason: staleEntries, object: mixed, serverIDs: []string{"gone"}}},
			memory:  memory{at: at(100), absentSince: missedSince(at(84.9), "gone")}},
	}, {
		name: "with the marker the entry goes",
		obs: observation{
			storageVersions: objects(withMarker(mixed)),
			absent:          sets.New("gone"),
			remembered:      memory{at: at(99), absentSince: missedSince(at(80), "gone")},
		},
		want: decision{heldBy: none, next: recheckInterval,
			effects: []effect{
				{action: removeEntries, reason: staleEntries, object: withMarker(mixed), serverIDs: []string{"gone"}},
			},
			memory: memory{at: at(100), absentSince: missedSince(at(80), "gone")}},
	}, {
		name: "with the marker an object of servers that are all gone is deleted; objects are taken by name",
		obs: observation{
			storageVersions: objects(withMarker(oneGone), withMarker(allGone)),
			absent:          sets.New("gone", "gone-2"),
			remembered:      memory{at: at(99), absentSince: missedSince(at(80), "gone", "gone-2")},
		},
		want: decision{heldBy: none, next: recheckInterval,
			effects: []effect{
				{action: deleteObject, reason: staleEntries, object: withMarker(allGone), serverIDs: []string{"gone", "gone-2"}},
				{action: deleteObject, reason: staleEntries, object: withMarker(oneGone), serverIDs: []string{"gone"}},
			},
			memory: memory{at: at(100), absentSince: missedSince(at(80), "gone", "gone-2")}},
	}, {
		name: "of two missing leases one is still in its grace: its entry stays, hence the object, too",
		obs: observation{
			storageVersions: objects(withMarker(allGone)),
			absent:          sets.New("gone", "gone-2"),
			remembered:      memory{at: at(99), absentSince: missedSince(at(80), "gone")},
		},
		want: decision{heldBy: sets.New(inGrace), next: probeInterval,
			effects: []effect{
				{action: removeEntries, reason: staleEntries, object: withMarker(allGone), serverIDs: []string{"gone"}},
			},
			memory: memory{at: at(100),
				absentSince: map[string]time.Time{"gone": at(80), "gone-2": at(100)}}},
	}, {
		name: "a gap in the readings may hide a failure: the grace begins again in a minute",
		obs: observation{
			storageVersions: objects(withMarker(oneGone)),
			absent:          sets.New("gone"),
			remembered:      memory{at: at(97.3), absentSince: missedSince(at(10), "gone"), refusals: 3},
		},
		want: decision{heldBy: sets.New(gap), next: recheckInterval, memory: memory{refusals: 3}},
	}, {
		name: "a lease that came back is forgotten, and the marker removed",
		obs: observation{
			storageVersions: objects(withMarker(healthy)),
			remembered:      memory{at: at(99), absentSince: missedSince(at(10), "living")},
		},
		want: decision{heldBy: none, next: recheckInterval,
			effects: []effect{{action: removeMarker, reason: noneStale, object: withMarker(healthy)}},
			memory:  memory{at: at(100), absentSince: missedSince(at(0))}},
	}, {
		name: "a marker found at start is left while its lease is in the grace",
		obs: observation{
			storageVersions: objects(withMarker(mixed)),
			absent:          sets.New("gone"),
		},
		want: decision{heldBy: sets.New(inGrace), next: probeInterval,
			memory: memory{at: at(100), absentSince: missedSince(at(100), "gone")}},
	}, {
		name: "an object without entries is one that a server may be about to fill",
		obs:  observation{storageVersions: objects(created(empty, 86), created(empty, 114))},
		want: decision{heldBy: sets.New(inGrace), next: probeInterval,
			memory: memory{at: at(100), absentSince: missedSince(at(0))}},
	}, {
		name: "an old object without entries is deleted, also if a clock is far behind",
		obs:  observation{storageVersions: objects(created(empty, 85), created(empty, 4000))},
		want: decision{heldBy: none, next: recheckInterval,
			effects: []effect{
				{action: deleteObject, reason: noEntries, object: created(empty, 85)},
				{action: deleteObject, reason: noEntries, object: created(empty, 4000)},
			},
			memory: memory{at: at(100), absentSince: missedSince(at(0))}},
	}, {
		name: "objects that are deleted already wait for their finalizers, not for us",
		obs: observation{
			storageVersions: objects(terminating(empty), terminating(withMarker(oneGone))),
			absent:          sets.New("gone"),
			remembered:      memory{at: at(99), absentSince: missedSince(at(80), "gone")},
		},
		want: decision{heldBy: none, next: recheckInterval,
			memory: memory{at: at(100), absentSince: missedSince(at(80), "gone")}},
	}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.obs.began, test.obs.now = at(99.9), at(100)
			var before []*apiserverinternalv1alpha1.StorageVersion
			for _, object := range test.obs.storageVersions {
				before = append(before, object.DeepCopy())
			}
			got := decide(test.obs)
			unexported := cmp.AllowUnexported(decision{}, effect{}, memory{})
			if diff := cmp.Diff(test.want, got, unexported); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.obs.storageVersions); diff != "" {
				t.Errorf("the decision changed what it was given (-before +after):\n%s", diff)
			}
		})
	}
}
