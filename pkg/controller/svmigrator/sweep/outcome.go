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

package sweep

// Outcome is the final result for an object. Each object gets exactly one.
type Outcome int

const (
	// NoOutcome is the zero value: the object still has to be rewritten.
	NoOutcome Outcome = iota
	// Rewritten: this migration wrote the object.
	Rewritten
	// AlreadyCurrent: the object was stored in the target encoding, and nothing was written.
	AlreadyCurrent
	// WrittenByOthers: somebody else wrote the object after it was listed. The servers agree on the target, so it is
	// stored in the target encoding.
	WrittenByOthers
	// Gone: the object was deleted.
	Gone
	// Denied: the API server permanently refuses to write the object, or keeps failing on it.
	Denied

	outcomeCount
)

var outcomeNames = [outcomeCount]string{
	NoOutcome: "NoOutcome", Rewritten: "Rewritten", AlreadyCurrent: "AlreadyCurrent",
	WrittenByOthers: "WrittenByOthers", Gone: "Gone", Denied: "Denied",
}

// Outcomes are all outcomes that an object can have.
var Outcomes = []Outcome{Rewritten, AlreadyCurrent, WrittenByOthers, Gone, Denied}

// Migrated reports whether an object with this outcome is known to be stored in the target encoding. An outcome that
// somebody adds is not, so a migration with such objects does not succeed.
func (o Outcome) Migrated() bool {
	return o == Rewritten || o == AlreadyCurrent || o == WrittenByOthers
}

// String returns the name of the outcome, as metrics and logs show it.
func (o Outcome) String() string { return outcomeNames[o] }

// Counts has the number of objects with each outcome.
type Counts [outcomeCount]int64

// Processed is how many objects have an outcome, whichever it is.
func (c Counts) Processed() (objects int64) {
	for _, count := range c {
		objects += count
	}
	return objects
}

// Migrated is how many objects are known to be stored in the target encoding.
func (c Counts) Migrated() (objects int64) {
	for outcome, count := range c {
		if Outcome(outcome).Migrated() {
			objects += count
		}
	}
	return objects
}

// Left is how many objects keep a migration from success, because they are neither migrated nor gone.
func (c Counts) Left() int64 { return c.Processed() - c.Migrated() - c[Gone] }
