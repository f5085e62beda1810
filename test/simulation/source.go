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

package simulation

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// source is what brings a new encoding about: a server process, a change of a definition, a change of an aggregated
// server.
type source struct {
	name string
	// identity is that of the server if it is a process of one.
	identity string
	// definition and generation are those of the change if it is one of a definition.
	definition types.UID
	generation int64
	// began is when the first object may have been written.
	began time.Time
	// grace is how long it may take until a state that is kept tells of what the source writes.
	grace time.Duration
	// due says that the grace is over. It never comes back.
	due bool
	// silent says that it left before anybody had to know of it, and writes no more.
	silent bool
}

// latency of watches and writes, when nothing is in their way.
const latency = 5 * time.Second

// isDue says whether states must tell of the source by now.
func (s *source) isDue(w *world) bool {
	if s.identity != "" && w.cluster.isStoodInFor(s.name) {
		s.began = w.now
	}
	if !s.due {
		limit := w.now.Add(-s.grace)
		awake := w.feeds.awakeSince
		s.due = !s.began.After(limit) && !awake.IsZero() && !awake.After(limit)
	}
	return s.due
}
