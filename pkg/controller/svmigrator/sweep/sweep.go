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
	"cmp"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// RunTime is a time on a clock that stands still between two runs of a sweep, because no object fails then.
type RunTime time.Duration

// Sub is how long it took from an earlier time to t.
func (t RunTime) Sub(earlier RunTime) time.Duration { return time.Duration(t - earlier) }

// Object is the metadata of an object, as it was listed. The Sweep sets Tries and FirstTry. The caller sets all other
// fields: those of the list, and what its tries find out. The Sweep reads them, but for Extra.
type Object struct {
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	// NeedsCleaning means that the object is rewritten even if it is newer than the baseline, because more than the
	// encoding has to be written.
	NeedsCleaning bool
	// Extra is what the caller keeps for the rewrite.
	Extra any

	// Tries counts the rewrites that failed and have to be repeated. FirstTry is when the object was first tried.
	Tries    int
	FirstTry RunTime
	// Failures counts the failures that this object alone may have caused. Refusals counts answers as of an API server
	// that has just started. FailingSince is when the first of these came.
	Failures, Refusals int
	FailingSince       RunTime
}

// Chunk is the answer to one list.
type Chunk struct {
	Objects []*Object
	// Next is the continue token of the chunk after this one. It is empty if this is the last chunk.
	Next string
	// ResourceVersion is the resource version of the list.
	ResourceVersion string
	// Remaining is how many objects come after this chunk, or nil if the server does not say.
	Remaining *int64
	// Versions counts the objects whose managedFields name a version.
	Versions map[string]int64
}

// Position is the point from which an interrupted sweep can be resumed.
type Position struct {
	// Token is the continue token of the next chunk. It is empty at the beginning and after the last chunk.
	Token string
	// Baseline is the resource version of the first list.
	Baseline string
	Counts   Counts
	// Retried counts the rewrites that were repeated.
	Retried int64
	// Denied names the first denied objects, up to MaxDeniedObjects. Counts has the number of all denied objects.
	Denied []migrationv1alpha1.DeniedObject
	// Complete means that every object has its outcome.
	Complete bool
	// Remaining is how many objects have no outcome yet, or nil if the server does not say.
	Remaining *int64
	// Versions counts the objects whose managedFields name a version.
	Versions map[string]int64
}

// Sweep goes once over the objects of a resource. Two goroutines must not use it at the same time.
type Sweep struct {
	// newer reports whether resource version a is surely newer than b.
	newer func(a, b string) bool
	// position is where the first chunk that is not done starts.
	position Position

	// current is the chunk that is being rewritten. It is empty before the first list and after the last chunk.
	current chunk
	// ahead is the chunk after the current one, if it has been listed.
	ahead   *chunk
	listing bool
	// token is the continue token of the next list. listedAll means that no list is left.
	token     string
	listedAll bool
}

// chunk is a chunk that was listed, with what is left of it. The zero value is none.
type chunk struct {
	Chunk    // without Objects
	listed   bool
	fresh    []*Object // not tried yet
	waiting  []retry   // to be tried again, sorted by time
	inFlight int
	failing  int // have failed, and have no outcome yet

	counts  Counts
	retried int64
	denied  []migrationv1alpha1.DeniedObject
}

type retry struct {
	object *Object
	at     time.Time
}

// New returns a sweep that resumes from a position. The zero Position is the beginning. newer reports whether resource
// version a is surely newer than b.
func New(from Position, newer func(a, b string) bool) *Sweep {
	return &Sweep{newer: newer, position: from, token: from.Token, listedAll: from.Complete}
}

// ForgetListed goes back to the position. It must not be called while an object or a list is in flight.
func (s *Sweep) ForgetListed() { *s = *New(s.position, s.newer) }

// List reports whether the caller has to list a chunk now, and with which continue token. The caller must then call
// Listed, ListFailed or ListExpired. Until then List does not ask for another list.
func (s *Sweep) List() (token string, wanted bool) {
	if s.listing || s.listedAll || s.ahead != nil {
		return "", false
	}
	s.listing = true
	return s.token, true
}

// Listed takes the chunk that was listed. It returns the objects that need no rewrite, because they are newer than the
// baseline: their outcome is WrittenByOthers. The first list has none, unless the sweep began with a baseline.
func (s *Sweep) Listed(c Chunk) (skipped []*Object) {
	s.listing = false
	s.position.Baseline = cmp.Or(s.position.Baseline, c.ResourceVersion)
	s.ahead = &chunk{Chunk: c, listed: true}
	s.ahead.Objects = nil
	for _, object := range c.Objects {
		if !object.NeedsCleaning && s.newer(object.ResourceVersion, s.position.Baseline) {
			skipped = append(skipped, object)
		} else {
			s.ahead.fresh = append(s.ahead.fresh, object)
		}
	}
	s.ahead.counts[WrittenByOthers] = int64(len(skipped))
	s.token, s.listedAll = c.Next, c.Next == ""
	s.startChunk()
	return skipped
}

// ListFailed records that the list failed. Then List asks for the same chunk again.
func (s *Sweep) ListFailed() { s.listing = false }

// ListExpired records that the continue token has expired, and with which token the list continues. The rest of the
// list is newer than the chunks before. That does no harm: an object that was written in between is stored in the
// target encoding.
func (s *Sweep) ListExpired(token string) {
	s.listing = false
	s.token = token
	if s.current.listed { // The position after the current chunk must not keep the expired token.
		s.current.Next = token
	} else {
		s.position.Token = token
	}
}

// Restart starts the sweep from the beginning, because the list cannot continue. It keeps the baseline, so that objects
// with a newer resource version are not rewritten again. No request may be in flight.
func (s *Sweep) Restart() {
	*s = *New(Position{Baseline: s.position.Baseline, Retried: s.Progress().Retried}, s.newer)
}

// startChunk makes the chunk that was listed ahead the current one, unless there is a current one.
func (s *Sweep) startChunk() {
	if !s.current.listed && s.ahead != nil {
		s.current, s.ahead = *s.ahead, nil
	}
}

// Next returns the object to rewrite next, or nil if there is none at this time. An object that may itself be the
// reason of its failures comes after all that were not tried yet: otherwise a few objects whose requests hang, one
// after the other, would keep all others waiting.
func (s *Sweep) Next(now time.Time) *Object {
	c := &s.current
	switch {
	case len(c.waiting) > 0 && !c.waiting[0].at.After(now) && (len(c.fresh) == 0 || c.waiting[0].object.Failures == 0):
		return c.waiting[0].object
	case len(c.fresh) > 0:
		return c.fresh[0]
	default:
		return nil
	}
}

// Take records that the object that Next returned is rewritten now.
func (s *Sweep) Take(object *Object, now RunTime) {
	c := &s.current
	if len(c.waiting) > 0 && c.waiting[0].object == object {
		c.waiting = c.waiting[1:]
	} else {
		c.fresh = c.fresh[1:]
	}
	if object.Tries == 0 {
		object.FirstTry = now
	}
	c.inFlight++
}

// Done records the outcome of an object. If the outcome is Denied, reason and message are those of the API server's
// answer.
func (s *Sweep) Done(object *Object, outcome Outcome, reason metav1.StatusReason, message string) {
	c := &s.current
	c.inFlight--
	c.counts[outcome]++
	if object.Tries > 0 {
		c.failing--
	}
	// Roles and their bindings may have names of any length.
	if outcome == Denied && utf8.RuneCountInString(object.Name) <= migrationv1alpha1.MaxDeniedObjectNameLength {
		c.denied = append(c.denied, migrationv1alpha1.DeniedObject{
			Namespace: object.Namespace, Name: object.Name, UID: object.UID, Reason: reason, Message: message,
		})
	}
}

// Retry records that the object has to be tried again at the given time.
func (s *Sweep) Retry(object *Object, at time.Time) {
	c := &s.current
	c.inFlight--
	c.retried++
	if object.Tries++; object.Tries == 1 {
		c.failing++
	}
	c.waiting = append(c.waiting, retry{object: object, at: at})
	slices.SortStableFunc(c.waiting, func(a, b retry) int { return a.at.Compare(b.at) })
}

// Return takes back an object whose rewrite has no result. Next will return it again.
func (s *Sweep) Return(object *Object) {
	s.current.inFlight--
	s.current.fresh = append(s.current.fresh, object)
}

// Waiting is how many objects wait to be tried again. since is the first FirstTry of one of them, next is when the next
// one has to be tried again. Both are zero if no object waits.
func (s *Sweep) Waiting() (objects int, since RunTime, next time.Time) {
	for i, waiting := range s.current.waiting {
		if i == 0 {
			since, next = waiting.object.FirstTry, waiting.at
		}
		since = min(since, waiting.object.FirstTry)
	}
	return len(s.current.waiting), since, next
}

// UnfinishedInChunk is how many objects of the current chunk have no outcome.
func (s *Sweep) UnfinishedInChunk() int {
	return len(s.current.fresh) + len(s.current.waiting) + s.current.inFlight
}

// InFlight is how many objects are being rewritten.
func (s *Sweep) InFlight() int { return s.current.inFlight }

// Listing reports whether a list is being answered.
func (s *Sweep) Listing() bool { return s.listing }

// Failing is how many objects have failed, and have no outcome yet.
func (s *Sweep) Failing() int { return s.current.failing }

// AcceptedInChunk is how many objects of the current chunk the API server has accepted a rewrite of. Those that others
// wrote are migrated too, but do not show that it accepts any.
func (s *Sweep) AcceptedInChunk() int64 {
	return s.current.counts[Rewritten] + s.current.counts[AlreadyCurrent]
}

// ChunkDone reports whether every object of the current chunk has its outcome. If so, it returns the position where the
// next chunk starts.
func (s *Sweep) ChunkDone() (Position, bool) {
	c := &s.current
	if !c.listed || s.UnfinishedInChunk() > 0 {
		return Position{}, false
	}
	p := s.Progress()
	p.Token, p.Complete, p.Remaining = c.Next, c.Next == "", c.Remaining
	room := max(0, migrationv1alpha1.MaxDeniedObjects-len(p.Denied))
	if len(c.Versions) > 0 {
		versions := maps.Clone(c.Versions)
		for version, objects := range p.Versions {
			versions[version] += objects
		}
		p.Versions = versions
	}
	p.Denied = slices.Concat(p.Denied, c.denied[:min(room, len(c.denied))])
	return p, true
}

// Advance moves to the next chunk if the current one is done.
func (s *Sweep) Advance() {
	position, done := s.ChunkDone()
	if !done {
		return
	}
	s.position, s.current = position, chunk{}
	s.startChunk()
}

// Complete reports whether every object of the resource has its outcome.
func (s *Sweep) Complete() bool { return s.position.Complete }

// Position is where the first chunk that is not done starts.
func (s *Sweep) Position() Position { return s.position }

// Progress is Position with the counts of the current chunk added.
func (s *Sweep) Progress() Position {
	p := s.position
	for outcome, count := range s.current.counts {
		p.Counts[outcome] += count
	}
	p.Retried += s.current.retried
	return p
}
