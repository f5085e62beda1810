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

package storageversion

import (
	"slices"
	"time"
)

// AgreedFrom returns from when on an agreement on the encoding hash counts, and whether all servers write it now.
//
// Servers that write one encoding do not agree at once: a write that an API server accepted before may land later, in
// the encoding of that time. So an agreement counts when it has lasted for settle. since is from when on a record shows
// that nobody began to write anything else; it is zero if there is no record, and the observation alone has to show it.
func (o *Observation) AgreedFrom(hash string, since time.Time, settle time.Duration) (from time.Time, all bool) {
	if since.IsZero() {
		since = o.Time
		for _, sighting := range slices.Backward(o.Sightings) {
			if len(sighting.Unseen) > 0 || !sighting.WritesOnly(hash) {
				break
			}
			since = sighting.Since
		}
	}
	last, seen := o.Last()
	all = seen && o.Problem == nil && o.Presence == Served && last.WritesOnly(hash)
	return since.Add(settle), all
}
