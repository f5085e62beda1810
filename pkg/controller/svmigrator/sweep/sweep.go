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
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Object is all that is known of an object: its metadata, as it was listed.
type Object struct {
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	// Extra belongs to whoever lists and rewrites.
	Extra any

	// Tries is how often a rewrite failed in a way that may pass, FirstTry when it was tried first.
	Tries    int
	FirstTry time.Time
	// Failures and FailingSince are about failures that may be of this object alone. Whoever rewrites keeps them.
	Failures     int
	FailingSince time.Time
}

// Chunk is what was listed in one go.
type Chunk struct {
	Objects []*Object
	// Next is the token of what comes after it, empty if nothing does.
	Next string
	// ResourceVersion is that of the list.
	ResourceVersion string
	// Remaining is how many objects come after it, nil if the server does not tell.
	Remaining *int64
}

// Position is what a sweep that was interrupted is resumed from.
type Position struct {
	// Token is that of the next chunk. It is empty at the beginning, and at the end.
	Token string
	// Baseline is the resource version of the first list.
	Baseline string
	Counts   Counts
	// Denied are the first objects that were denied; how many there are in all is in Counts.
	Denied []Denial
	// Complete says that every object has its outcome.
	Complete bool
	// Remaining is how many objects have none, nil if the server does not tell.
	Remaining *int64
}

// Options of a sweep.
type Options struct {
	// Newer says whether resource version a is surely newer than b. Nil where resource versions mean nothing.
	Newer func(a, b string) bool
	// MaxDenials is how many denied objects are kept by name.
	MaxDenials int
}

// Sweep is one pass over the objects of a resource. It must not be used by two goroutines at once.
type Sweep struct {
	options Options
	// position is behind the last chunk that is done.
	position Position

	// current is the chunk whose objects are rewritten, nil before the first and after the last.
	current *chunk
	// ahead is the chunk after it, if it was listed already.
	ahead   *Chunk
	listing bool
	// token is that of the chunk which is to be listed next, listedAll says that there is none.
	token     string
	listedAll bool
}

// chunk is a chunk on its way.
type chunk struct {
	Chunk
	fresh   []*Object // not tried yet
	waiting []retry   // in the order of their times
	flying  int
	counts  Counts
	denied  []Denial
}

type retry struct {
	object *Object
	at     time.Time
}

// New returns a sweep that goes on from a position; that of the beginning is the zero value.
func New(from Position, options Options) *Sweep {
	return &Sweep{options: options, position: from, token: from.Token, listedAll: from.Complete}
}

// List says that a chunk is to be listed now, with this token, and takes for granted that it is.
func (s *Sweep) List() (token string, wanted bool) {
	if s.listing || s.listedAll || s.ahead != nil {
		return "", false
	}
	s.listing = true
	return s.token, true
}

// Listed takes the chunk that was listed.
func (s *Sweep) Listed(c Chunk) {
	s.listing = false
	if s.position.Baseline == "" {
		s.position.Baseline = c.ResourceVersion
	}
	s.token, s.listedAll = c.Next, c.Next == ""
	s.ahead = &c
	s.begin()
}

// ListFailed says that the chunk could not be listed. It is wanted again.
func (s *Sweep) ListFailed() { s.listing = false }

// ListExpired says that the token of the chunk is not valid any more, and with which one the list goes on. What it goes on
// with is newer than what was listed before, which does not matter: an object that is written in between is written in the
// current encoding.
func (s *Sweep) ListExpired(token string) {
	s.listing = false
	s.token = token
	if s.current != nil {
		s.current.Next = token
	} else {
		s.position.Token = token
	}
}

// Restart begins anew, because nothing can be listed from here. What has a newer resource version than the baseline is not
// rewritten again. Nothing may be in flight.
func (s *Sweep) Restart() error {
	if s.current != nil && s.current.flying > 0 {
		return errors.New("a sweep with requests in flight was to begin anew")
	}
	baseline := s.position.Baseline
	*s = *New(Position{Baseline: baseline, Counts: Counts{Retried: s.Counts().Retried}}, s.options)
	return nil
}

// begin takes the chunk that was listed ahead, if its turn has come.
func (s *Sweep) begin() {
	if s.current != nil || s.ahead == nil {
		return
	}
	s.current, s.ahead = &chunk{Chunk: *s.ahead}, nil
	for _, object := range s.current.Objects {
		// Only possible in a list that went on after its token expired, or that began anew.
		if s.options.Newer != nil && s.options.Newer(object.ResourceVersion, s.position.Baseline) {
			s.current.counts.add(WrittenByOthers)
			continue
		}
		s.current.fresh = append(s.current.fresh, object)
	}
	s.current.Objects = nil
}

// Next is the object that is to be rewritten next, nil if there is none at this time.
func (s *Sweep) Next(now time.Time) *Object {
	c := s.current
	switch {
	case c == nil:
		return nil
	case len(c.waiting) > 0 && !c.waiting[0].at.After(now):
		return c.waiting[0].object
	case len(c.fresh) > 0:
		return c.fresh[0]
	default:
		return nil
	}
}

// Take says that the object which Next told is being rewritten.
func (s *Sweep) Take(object *Object, now time.Time) {
	c := s.current
	if len(c.waiting) > 0 && c.waiting[0].object == object {
		c.waiting = c.waiting[1:]
	} else {
		c.fresh = c.fresh[1:]
	}
	if object.FirstTry.IsZero() {
		object.FirstTry = now
	}
	c.flying++
}

// Done gives an object its outcome. why is about denied ones.
func (s *Sweep) Done(object *Object, outcome Outcome, why Denial) {
	c := s.current
	c.flying--
	c.counts.add(outcome)
	if outcome == Denied {
		why.Namespace, why.Name, why.UID = object.Namespace, object.Name, object.UID
		c.denied = append(c.denied, why)
	}
}

// Retry has an object tried again from a time on.
func (s *Sweep) Retry(object *Object, at time.Time) {
	c := s.current
	c.flying--
	c.counts.Retried++
	object.Tries++
	i := len(c.waiting)
	for i > 0 && c.waiting[i-1].at.After(at) {
		i--
	}
	c.waiting = append(c.waiting[:i], append([]retry{{object: object, at: at}}, c.waiting[i:]...)...)
}

// Return takes back an object that was not tried.
func (s *Sweep) Return(object *Object) {
	s.current.flying--
	s.current.fresh = append(s.current.fresh, object)
}

// Wake is when an object is to be tried again, zero if none waits.
func (s *Sweep) Wake() time.Time {
	if s.current == nil || len(s.current.waiting) == 0 {
		return time.Time{}
	}
	return s.current.waiting[0].at
}

// Waiting is how many objects wait to be tried again, and when the first of them was tried first.
func (s *Sweep) Waiting() (objects int, since time.Time) {
	if s.current == nil {
		return 0, time.Time{}
	}
	for _, waiting := range s.current.waiting {
		if first := waiting.object.FirstTry; since.IsZero() || first.Before(since) {
			since = first
		}
	}
	return len(s.current.waiting), since
}

// Unfinished is how many objects of the current chunk have no outcome.
func (s *Sweep) Unfinished() int {
	if s.current == nil {
		return 0
	}
	return len(s.current.fresh) + len(s.current.waiting) + s.current.flying
}

// Stored is how many objects of the current chunk are known to be stored as they should be.
func (s *Sweep) Stored() int64 {
	if s.current == nil {
		return 0
	}
	return s.current.counts.Rewritten + s.current.counts.AlreadyCurrent
}

// ChunkDone says that every object of the current chunk has its outcome, and which position is reached by that.
func (s *Sweep) ChunkDone() (Position, bool) {
	c := s.current
	if c == nil || s.Unfinished() > 0 {
		return Position{}, false
	}
	p := s.position
	p.Token, p.Complete, p.Remaining = c.Next, c.Next == "", c.Remaining
	p.Counts.Add(c.counts)
	room := max(0, s.options.MaxDenials-len(p.Denied))
	p.Denied = append(p.Denied[:len(p.Denied):len(p.Denied)], c.denied[:min(room, len(c.denied))]...)
	return p, true
}

// Advance goes on behind the current chunk, which is done.
func (s *Sweep) Advance() {
	position, done := s.ChunkDone()
	if !done {
		return
	}
	s.position, s.current = position, nil
	s.begin()
}

// Complete says that every object of the resource has its outcome.
func (s *Sweep) Complete() bool { return s.position.Complete }

// Token is that of the chunk which is listed next, empty if that is the first one.
func (s *Sweep) Token() string { return s.token }

// Position is behind the last chunk that is done.
func (s *Sweep) Position() Position { return s.position }

// Counts are those of all outcomes, also of those in the current chunk.
func (s *Sweep) Counts() Counts {
	counts := s.position.Counts
	if s.current != nil {
		counts.Add(s.current.counts)
	}
	return counts
}
