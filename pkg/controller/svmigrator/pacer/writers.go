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

package pacer

import "time"

const (
	// fewWrites is how many writes of others per second do not count as noticed. In any cluster some Leases are renewed.
	fewWrites = 10
	// countFor is how long writes are counted at least before their rate is judged.
	countFor = time.Second
	// quietFor is how long nobody counts as writing after the last count.
	quietFor = 10 * time.Second
)

// writers notices other clients that write to the etcd in which a lane's objects are. Each write increments etcd's
// revision. So the growth of the revision, less what the migrations wrote, is what others wrote.
type writers struct {
	perSecond float64 // when it was counted last
	counted   time.Time

	since    time.Time // when counting began
	revision int64     // of etcd then
	ours     int64     // how many objects all lanes had written then
}

func (w *writers) noticed() bool { return w.perSecond > fewWrites }

// none reports whether it is known that nobody else writes. It is not known in the first second, nor while the lane
// writes nothing because its objects are current already, nor if what it writes has no revision of etcd.
func (w *writers) none(now time.Time) bool {
	return !w.noticed() && !w.counted.IsZero() && now.Sub(w.counted) < quietFor
}

// count records the revision of an object that the lane has written, and how many objects all lanes have written. It
// reports whether others have begun to write. out is how many requests are out: their writes may be in the revision.
func (w *writers) count(revision, ours int64, out int, now time.Time) (begun bool) {
	took := now.Sub(w.since)
	if took < countFor {
		return false
	}
	if w.revision > 0 {
		theirs := revision - w.revision - (ours - w.ours) - int64(out)
		before := w.noticed()
		w.perSecond, w.counted = max(0, float64(theirs)/took.Seconds()), now
		begun = w.noticed() && !before
	}
	w.since, w.revision, w.ours = now, revision, ours
	return begun
}
