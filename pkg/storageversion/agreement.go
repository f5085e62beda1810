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

// AgreedFrom returns the time from which the servers count as agreed on the encoding hash, and whether all write it
// now.
//
// Servers that write one encoding do not agree at once: a write that an API server accepted before may land later, in
// the encoding of that time. So they agree when they have written only this encoding for the time settle. since is when
// that began, as a record shows. If it is zero, there is no record, and the sightings have to show it.
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
