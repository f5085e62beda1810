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

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Outcome is what became of an object. Each object has exactly one.
type Outcome string

const (
	// Rewritten: this migration wrote it.
	Rewritten Outcome = "Rewritten"
	// AlreadyCurrent: it was stored in the target encoding, and nothing was written.
	AlreadyCurrent Outcome = "AlreadyCurrent"
	// WrittenByOthers: somebody wrote it since it was listed, in the target encoding, because the servers agree on that.
	WrittenByOthers Outcome = "WrittenByOthers"
	// Gone: it was deleted.
	Gone Outcome = "Gone"
	// Denied: the API server refuses to write it for good.
	Denied Outcome = "Denied"
)

// Outcomes are all that there are.
var Outcomes = []Outcome{Rewritten, AlreadyCurrent, WrittenByOthers, Gone, Denied}

// Denial tells which object was denied and why, in the API server's own words.
type Denial struct {
	Namespace, Name string
	UID             types.UID
	Reason          metav1.StatusReason
	Message         string
}

// Counts are numbers of objects by outcome, and of requests that were sent again.
type Counts struct {
	Rewritten, AlreadyCurrent, WrittenByOthers, Gone, Denied int64
	Retried                                                  int64
}

// Processed is how many objects have an outcome.
func (c Counts) Processed() int64 {
	return c.Rewritten + c.AlreadyCurrent + c.WrittenByOthers + c.Gone + c.Denied
}

// Of is how many objects have that outcome.
func (c Counts) Of(outcome Outcome) int64 { return *c.of(outcome) }

// Add adds other counts.
func (c *Counts) Add(other Counts) {
	for _, outcome := range Outcomes {
		*c.of(outcome) += other.Of(outcome)
	}
	c.Retried += other.Retried
}

// Settle replaces the outcome Denied of one object by another.
func (c *Counts) Settle(outcome Outcome) {
	c.Denied--
	c.add(outcome)
}

func (c *Counts) add(outcome Outcome) { *c.of(outcome)++ }

func (c *Counts) of(outcome Outcome) *int64 {
	switch outcome {
	case Rewritten:
		return &c.Rewritten
	case AlreadyCurrent:
		return &c.AlreadyCurrent
	case WrittenByOthers:
		return &c.WrittenByOthers
	case Gone:
		return &c.Gone
	default:
		return &c.Denied
	}
}
