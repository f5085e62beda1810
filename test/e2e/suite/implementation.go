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

package suite

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Implementation adapts a migrator to the suite.
type Implementation interface {
	// Name is its name in reports.
	Name() string
	// Features are what it claims to do beyond the core of the profiles.
	Features() Features
	// Prepare does what an administrator has to do before a new resource can be migrated, for example grants a permission.
	// The function that it returns, unless that is nil, undoes it, also if there is an error.
	Prepare(ctx context.Context, resource schema.GroupVersionResource) (undo func(ctx context.Context) error, err error)
	// Start asks for a migration of all objects of a resource to the encoding that API servers write now.
	Start(ctx context.Context, resource schema.GroupVersionResource) (Migration, error)
	// Knowledge is what is recorded about the encodings of a resource. It is only called if FeatureKnowledge is declared.
	Knowledge(ctx context.Context, resource schema.GroupResource) (Knowledge, error)
	// Forget makes the record of a resource go, as an administrator does who does not trust it. It is only called if
	// FeatureKnowledge is declared.
	Forget(ctx context.Context, resource schema.GroupResource) error
}

// Features are declared features.
type Features []Feature

// Has tells whether a feature is declared.
func (f Features) Has(feature Feature) bool { return slices.Contains(f, feature) }

// Migration is one migration that was asked for.
type Migration interface {
	// Outcome is how far it is. A migration that no longer exists has ended without success.
	Outcome(ctx context.Context) (Outcome, error)
	// Remove removes what asked for the migration, and what it left.
	Remove(ctx context.Context) error
}

// Outcome is how far a migration is.
type Outcome struct {
	// Ended means that the migration is over, and Succeeded that it claims that every object is stored in the encoding
	// that API servers write.
	Ended, Succeeded bool
	// Reason and Message are the words of the implementation.
	Reason, Message string
	// Denied are the objects that it names as denied, with the reason of the API server.
	Denied map[types.NamespacedName]string
	// Processed is how many objects it counts; nil without FeatureProgress.
	Processed *int64
	// Everything is all that users can read about a migration that has ended, also in its record and in Events.
	Everything string
}

// UnknownEncoding is what knowledge says about an encoding that it does not know.
const UnknownEncoding = "Unknown"

// Knowledge is what is recorded about the encodings of a resource.
type Knowledge struct {
	// Recorded is false if there is no record.
	Recorded bool
	// Current is the storage version hash of the encoding that is written, or UnknownEncoding.
	Current string
	// Persisted are the storage version hashes in which objects may be stored. It may have UnknownEncoding.
	Persisted []string
	// Heartbeat is when the record was last known to be right.
	Heartbeat time.Time
}

// MayBe tells whether objects may be stored in an encoding with that hash.
func (k Knowledge) MayBe(hash string) bool {
	return !k.Recorded || len(k.Persisted) == 0 ||
		slices.Contains(k.Persisted, UnknownEncoding) || slices.Contains(k.Persisted, hash)
}

// IsOnly tells whether all objects are stored in the encoding with that hash.
func (k Knowledge) IsOnly(hash string) bool {
	return k.Recorded && k.Current == hash && slices.Equal(slices.Compact(slices.Clone(k.Persisted)), []string{hash})
}
