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
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestNewestState(t *testing.T) {
	at := func(uid types.UID, resourceVersion string) *migrationv1alpha1.StorageState {
		return &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "secrets", UID: uid, ResourceVersion: resourceVersion}}
	}
	stored, old, newer, successor := at("1", "10"), at("1", "9"), at("1", "11"), at("2", "12")
	for name, tc := range map[string]struct {
		stored, deleted *migrationv1alpha1.StorageState
		cached          *migrationv1alpha1.StorageState
		cacheVersion    string
		want            *migrationv1alpha1.StorageState
	}{
		"nothing was written":                              {cached: old, want: old},
		"the cache shows what was there before":            {stored: stored, cached: old, cacheVersion: "9", want: stored},
		"the cache shows what was written":                 {stored: stored, cached: at("1", "10"), cacheVersion: "10", want: at("1", "10")},
		"somebody wrote after us":                          {stored: stored, cached: newer, cacheVersion: "11", want: newer},
		"the cache does not show the creation yet":         {stored: stored, cacheVersion: "9", want: stored},
		"somebody deleted it before the cache showed it":   {stored: stored, cacheVersion: "11", want: nil},
		"somebody made it anew":                            {stored: stored, cached: successor, cacheVersion: "12", want: successor},
		"the version of the cache is not known":            {stored: stored, cached: old, want: stored},
		"versions have different lengths":                  {stored: stored, cached: old, cacheVersion: "9", want: stored},
		"the cache still shows what was deleted":           {deleted: stored, cached: stored, cacheVersion: "10", want: nil},
		"the cache shows something before what we deleted": {deleted: stored, cached: old, cacheVersion: "9", want: nil},
		"the cache shows the deletion":                     {deleted: stored, cacheVersion: "11", want: nil},
		"the cache shows the successor of what we deleted": {deleted: stored, cached: successor, cacheVersion: "12", want: successor},
		"a finalizer keeps what was deleted":               {deleted: stored, cached: newer, cacheVersion: "11", want: newer},
	} {
		t.Run(name, func(t *testing.T) {
			own, secrets := newOwnWrites(), schema.GroupResource{Resource: "secrets"}
			if tc.stored != nil {
				own.stored(secrets, tc.stored)
			}
			if tc.deleted != nil {
				own.deleted(secrets, tc.deleted)
			}
			for range 2 { // asking changes nothing
				got := own.newest(secrets, tc.cached, tc.cacheVersion)
				if version(got) != version(tc.want) {
					t.Errorf("got %q, want %q", version(got), version(tc.want))
				}
			}
		})
	}
}

func TestOwnWritesAreForgotten(t *testing.T) {
	own, secrets := newOwnWrites(), schema.GroupResource{Resource: "secrets"}
	state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "10"}}
	own.stored(secrets, state)
	own.newest(secrets, state, "10")
	if len(own.last) > 0 {
		t.Errorf("still remembered: %v", own.last)
	}
}

func version(state *migrationv1alpha1.StorageState) string {
	if state == nil {
		return "none"
	}
	return string(state.UID) + "@" + state.ResourceVersion
}
