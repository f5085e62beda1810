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

// AllWrite reports whether all servers write the encoding hash and no other now.
//
// They do not agree at once: a write that an API server accepted before may land later, in the encoding of that time.
// So they agree when they have written only this encoding for the settle period. A record shows when that began, or
// WroteOnlyFrom does.
func (o *Observation) AllWrite(hash string) bool {
	last, seen := o.Last()
	return seen && o.Problem == nil && o.Presence == Served && last.WritesOnly(hash)
}

// WroteOnlyFrom returns since when the sightings show that the servers have written only the encoding hash. It
// returns the time of the observation if the last sighting does not show that.
func (o *Observation) WroteOnlyFrom(hash string) time.Time {
	since := o.Time
	for _, sighting := range slices.Backward(o.Sightings) {
		if !sighting.ProvesOnly(hash) {
			break
		}
		since = sighting.Since
	}
	return since
}
