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

package api

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestValidationOfChangedStateStatus(t *testing.T) {
	const (
		leftOut refusal = "persistedStorageVersionHashes must contain currentStorageVersionHash, or Unknown"
		shrunk  refusal = "an entry leaves persistedStorageVersionHashes only when " +
			"currentStorageVersionHash alone remains"
		removed refusal = "status cannot be removed while it has persistedStorageVersionHashes or an epoch"
	)
	tooLong := strings.Repeat("x", v1alpha1.MaxRetryLength+1)
	for name, test := range map[string]struct {
		before, after string
		want          refusal
	}{
		"first sight": {
			before: `null`,
			after:  hashes("a=", "Unknown"),
			want:   accepted,
		},
		"first sight, current not persisted": {
			before: `null`,
			after:  hashes("a=", "b="),
			want:   leftOut,
		},
		"first sight, nothing persisted": {
			before: `null`,
			after:  `{currentStorageVersionHash: a=}`,
			want:   leftOut,
		},
		"the servers do not agree at all": {
			before: `null`,
			after:  hashes("Unknown", "a=", "b="),
			want:   accepted,
		},
		"a new encoding, recorded at once": {
			before: hashes("a=", "a="),
			after:  hashes("b=", "a=", "b="),
			want:   accepted,
		},
		"a new encoding, appended by the rules of the documents": {
			before: hashes("a=", "a=", "b="),
			after:  hashes("b=", "a=", "b=", "b="),
			want:   accepted,
		},
		"a new encoding, not recorded": {
			before: hashes("a=", "a="),
			after:  hashes("b=", "a="),
			want:   leftOut,
		},
		"a new encoding in place of the old": {
			before: hashes("a=", "a=", "c="),
			after:  hashes("b=", "b=", "c="),
			want:   shrunk,
		},
		"a migration is complete": {
			before: hashes("b=", "Unknown", "a=", "b="),
			after:  hashes("b=", "b="),
			want:   accepted,
		},
		"one of two old encodings is forgotten": {
			before: hashes("c=", "a=", "b=", "c="),
			after:  hashes("c=", "b=", "c="),
			want:   shrunk,
		},
		"Unknown is forgotten": {
			before: hashes("b=", "Unknown", "a="),
			after:  hashes("b=", "a=", "b="),
			want:   shrunk,
		},
		"shrunk while nothing is agreed": {
			before: hashes("Unknown", "a=", "b="),
			after:  hashes("Unknown", "a="),
			want:   shrunk,
		},
		"a new encoding, and the old one forgotten": {
			before: hashes("a=", "a="),
			after:  hashes("b=", "b="),
			want:   shrunk,
		},
		"agreement, and the old encodings forgotten": {
			before: hashes("Unknown", "Unknown", "a=", "b="),
			after:  hashes("b=", "b="),
			want:   shrunk,
		},
		"first agreement, and the old encodings forgotten": {
			before: `{persistedStorageVersionHashes: [a=, b=]}`,
			after:  hashes("b=", "b="),
			want:   shrunk,
		},
		"all forgotten for an empty hash": {
			before: hashes("a=", "a=", "b="),
			after:  hashes("", ""),
			want:   shrunk,
		},
		"all forgotten for an empty hash that was there": {
			before: hashes("", "a=", ""),
			after:  hashes("", ""),
			want:   shrunk,
		},
		"more encodings than the list can hold": {
			before: hashes("a=", "a=", "b="),
			after:  hashes("c=", "Unknown", "c="),
			want:   accepted,
		},
		"started over": {
			before: hashes("a=", "a=", "b="),
			after:  hashes("a=", "Unknown"),
			want:   accepted,
		},
		"repeated entries are put right": {
			before: hashes("a=", "a=", "b=", "a="),
			after:  hashes("a=", "b=", "a="),
			want:   accepted,
		},
		"emptied": {
			before: hashes("a=", "a="),
			after:  `{persistedStorageVersionHashes: []}`,
			want:   shrunk,
		},
		"taken out": {
			before: hashes("a=", "a="),
			after:  `{epoch: 1}`,
			want:   shrunk,
		},
		"the whole status taken out": {
			before: hashes("a=", "a="),
			after:  `null`,
			want:   removed,
		},
		"the whole status taken out, an epoch in it": {
			before: `{epoch: 3}`,
			after:  `null`,
			want:   "to start over, delete the StorageState",
		},
		"a status taken out that says nothing": {
			before: `{persistedStorageVersionHashes: [], lastHeartbeatTime: "2030-01-01T00:00:00Z"}`,
			after:  `null`,
			want:   accepted,
		},
		"the epoch goes up": {
			before: `{epoch: 3}`,
			after:  `{epoch: 9}`,
			want:   accepted,
		},
		"the epoch stays": {
			before: `{epoch: 3}`,
			after:  `{epoch: 3}`,
			want:   accepted,
		},
		"the epoch goes down": {
			before: `{epoch: 3}`,
			after:  `{epoch: 2}`,
			want:   "epoch never goes down",
		},
		"the epoch goes away": {
			before: `{epoch: 3}`,
			after:  `{lastHeartbeatTime: "2030-01-01T00:00:00Z"}`,
			want:   "epoch never goes down",
		},
		"a retry is answered": {
			before: `{lastHandledRetry: one}`,
			after:  `{lastHandledRetry: other}`,
			want:   accepted,
		},
		"a retry that was not cut": {
			before: `null`,
			after:  `{lastHandledRetry: ` + tooLong + `}`,
			want:   "Too long",
		},
		"evidence of a source that a later release has": {
			before: `null`,
			after:  `{evidence: {source: Guess}}`,
			want:   accepted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageState", "deployments.apps", "spec", stateOfDeployments)
			setPart(t, object, "status", test.before)
			object = shared.createWithStatus(t, object)
			setPart(t, object, "status", test.after)
			_, err := shared.resourceOf(object).UpdateStatus(t.Context(), object, strictUpdate)
			requireAnswer(t, err, test.want)
		})
	}
}

// What a controller writes in the course of time, one after the other.
func TestLivesOfStates(t *testing.T) {
	for name, statuses := range map[string][]string{
		"a new encoding, migrated": {
			hashes("a=", "Unknown", "a="),
			hashes("a=", "a="),
			hashes("b=", "a=", "b="),
			hashes("b=", "b="),
		},
		"a disagreement, then agreement, migrated": {
			hashes("a=", "a="),
			hashes("Unknown", "a=", "b="),
			hashes("b=", "a=", "b="),
			hashes("b=", "b="),
		},
		"repeated entries, appended by kube-storage-version-migrator, then migrated": {
			hashes("a=", "Unknown"),
			hashes("b=", "Unknown", "b="),
			hashes("a=", "Unknown", "b=", "a="),
			hashes("b=", "Unknown", "b=", "a=", "b="),
			hashes("b=", "b="),
			hashes("a=", "b=", "a="),
			hashes("b=", "b=", "a=", "b="),
			hashes("b=", "b="),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := shared.createWithStatus(t, objectOf(t, "StorageState", "deployments.apps", "spec", stateOfDeployments))
			for i, status := range statuses {
				setPart(t, object, "status", status)
				var err error
				if object, err = shared.resourceOf(object).UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
					t.Fatalf("status %d: %v", i, err)
				}
			}
		})
	}
}

func TestValidationOfMigrationStatus(t *testing.T) {
	for name, test := range map[string]struct {
		status string
		want   refusal
	}{
		"as many denied objects as are allowed": {
			status: `{deniedObjects: [` + deniedObjects(100) + `]}`,
			want:   accepted,
		},
		"more denied objects than are allowed": {
			status: `{deniedObjects: [` + deniedObjects(101) + `]}`,
			want:   "must have at most 100 items",
		},
		"a message of full length, not in ASCII": {
			status: `{deniedObjects: [{name: a, message: "` + strings.Repeat("ü", 1024) + `"}]}`,
			want:   accepted,
		},
		"a message that was not cut": {
			status: `{deniedObjects: [{name: a, message: "` + strings.Repeat("x", 1025) + `"}]}`,
			want:   "Too long",
		},
		"one name in two namespaces and in none": {
			status: `{deniedObjects: [{name: a}, {name: a, namespace: b}, {name: a, namespace: c}]}`,
			want:   accepted,
		},
		"one denied object twice": {
			status: `{deniedObjects: [{name: a, reason: Invalid}, {name: a, reason: Forbidden}]}`,
			want:   "Duplicate value",
		},
		"one condition twice": {
			status: `{conditions: [{type: Running, status: "True"}, {type: Running, status: "False"}]}`,
			want:   "Duplicate value",
		},
		"a count below nothing": {
			status: `{progress: {rewritten: -1}}`,
			want:   "should be greater than or equal to 0",
		},
		"more than all": {
			status: `{progress: {percentComplete: 101}}`,
			want:   "should be less than or equal to 100",
		},
		"a long message of a condition": {
			status: `{conditions: [{type: Failed, status: "True", message: "` + strings.Repeat("x", 100_000) + `"}]}`,
			want:   accepted,
		},
		"a target that is known by its hash only": {
			status: `{target: {storageVersionHash: a=}}`,
			want:   accepted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageVersionMigration", "test", "spec", migrationOfDeployments)
			object = shared.createWithStatus(t, object)
			setPart(t, object, "status", test.status)
			_, err := shared.resourceOf(object).UpdateStatus(t.Context(), object, strictUpdate)
			requireAnswer(t, err, test.want)
		})
	}
}

// hashes is the status of a StorageState with a current hash and persisted ones.
func hashes(current string, persisted ...string) string {
	return fmt.Sprintf(`{currentStorageVersionHash: %q, persistedStorageVersionHashes: ["%s"]}`,
		current, strings.Join(persisted, `", "`))
}

// deniedObjects are n objects with different names.
func deniedObjects(n int) string {
	var objects []string
	for i := range n {
		objects = append(objects, "{name: "+strings.Repeat("a", i+1)+"}")
	}
	return strings.Join(objects, ", ")
}
