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
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// world is a server with objects, what they were given as outcomes, and what was stored of the sweep.
type world struct {
	t         *rapid.T
	chunkSize int
	objects   []string
	given     map[string]int // outcomes by object, since the beginning
	since     map[string]int // outcomes by object, since the position that was stored last
	stored    Position
	sweep     *Sweep
	flying    []*Object
	asked     *string // the token of the list on its way
	now       time.Time
	crashes   int
}

func newer(a, b string) bool { return number(a) > number(b) }

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// chunk lists objects from a position on. Tokens of the kind "i3" are those that a server gives when a snapshot is
// gone: what is listed with them is of a newer resource version, and so are objects that were written since.
func (w *world) chunk(token string) Chunk {
	version, from := "100", number(token)
	if len(token) > 0 && token[0] == 'i' {
		version, from = "200", number(token[1:])
	}
	to := min(from+w.chunkSize, len(w.objects))
	c := Chunk{ResourceVersion: version}
	for _, name := range w.objects[from:to] {
		object := &Object{Name: name, ResourceVersion: "50"}
		if w.given[name] > 0 && version == "200" {
			object.ResourceVersion = "150"
		}
		c.Objects = append(c.Objects, object)
	}
	if to < len(w.objects) {
		c.Next = strconv.Itoa(to)
		if version == "200" {
			c.Next = "i" + c.Next
		}
		left := int64(len(w.objects) - to)
		c.Remaining = &left
	}
	return c
}

func (w *world) step() {
	type move struct {
		name string
		do   func()
	}
	var moves []move
	can := func(name string, do func()) { moves = append(moves, move{name, do}) }
	if w.asked == nil {
		if token, wanted := w.sweep.List(); wanted {
			w.asked = &token
		}
	}
	if w.asked != nil {
		can("list", w.list)
		can("the token expires", w.expire)
	}
	if object := w.sweep.Next(w.now); object != nil {
		can("take", func() { w.sweep.Take(object, 0); w.flying = append(w.flying, object) })
	}
	if len(w.flying) > 0 {
		can("done", w.done)
		can("retry", func() {
			w.sweep.Retry(w.land(), w.now.Add(time.Duration(rapid.IntRange(0, 3).Draw(w.t, "delay"))*time.Second))
		})
		can("return", func() { w.sweep.Return(w.land()) })
	}
	if waiting, _, _ := w.sweep.Waiting(); waiting > 0 {
		can("time passes", func() { w.now = w.now.Add(time.Second) })
	}
	if w.crashes < 5 {
		can("crash", w.crash)
	}
	if position, done := w.sweep.ChunkDone(); done {
		moves = nil
		can("advance", func() { w.advance(position, rapid.Bool().Draw(w.t, "save") || position.Complete) })
	}
	if len(moves) == 0 {
		w.t.Fatalf("nothing can happen, and the sweep is not complete: %+v", w.sweep)
	}
	moves[rapid.IntRange(0, len(moves)-1).Draw(w.t, "move")].do()
}

func (w *world) list() {
	w.sweep.Listed(w.chunk(*w.asked))
	w.asked = nil
}

func (w *world) expire() {
	if *w.asked == "" || (*w.asked)[0] == 'i' {
		return // the first list has no token, and one that goes on without a snapshot does not expire
	}
	w.sweep.ListExpired("i" + *w.asked)
	w.asked = nil
}

// land takes an object out of the air.
func (w *world) land() *Object {
	i := rapid.IntRange(0, len(w.flying)-1).Draw(w.t, "object")
	object := w.flying[i]
	w.flying = slices.Delete(w.flying, i, i+1)
	return object
}

func (w *world) done() {
	object := w.land()
	outcome := rapid.SampledFrom(Outcomes).Draw(w.t, "outcome")
	w.given[object.Name]++
	w.since[object.Name]++
	w.sweep.Done(object, outcome, "", "no")
}

func (w *world) advance(position Position, save bool) {
	if save {
		w.stored = position
		w.since = map[string]int{}
	}
	w.sweep.Advance()
}

// crash loses all that was not stored.
func (w *world) crash() {
	w.crashes++
	w.flying, w.asked = nil, nil
	w.since = map[string]int{}
	w.sweep = New(w.stored, newer)
}

func (w *world) check() {
	for name, times := range w.since {
		if times > 1 {
			w.t.Fatalf("%s was done %d times since the last position", name, times)
		}
	}
	counts := w.stored.Counts
	if p := counts.Processed(); p > int64(len(w.objects)) {
		w.t.Fatalf("%d objects were processed of %d", p, len(w.objects))
	}
}

func TestEveryObjectGetsItsOutcome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, sweep: New(Position{}, newer), now: time.Unix(0, 0)}
		w.given, w.since = map[string]int{}, map[string]int{}
		w.chunkSize = rapid.IntRange(1, 7).Draw(t, "chunk size")
		for i := range rapid.IntRange(0, 30).Draw(t, "objects") {
			w.objects = append(w.objects, fmt.Sprintf("object-%02d", i))
		}
		for !w.sweep.Complete() {
			w.step()
			w.check()
		}
		for _, name := range w.objects {
			if w.given[name] == 0 {
				t.Errorf("%s has no outcome", name)
			}
			if w.crashes == 0 && w.given[name] > 1 {
				t.Errorf("%s has %d outcomes", name, w.given[name])
			}
		}
		counts := w.sweep.Progress().Counts
		if counts != w.stored.Counts {
			t.Errorf("the counts are %+v, and %+v was stored", counts, w.stored.Counts)
		}
		if counts.Processed() != int64(len(w.objects)) {
			t.Errorf("%d of %d objects were processed: %+v", counts.Processed(), len(w.objects), counts)
		}
		if named := len(w.stored.Denied); int64(named) != counts[Denied] {
			t.Errorf("%d denied objects are named of %d", named, counts[Denied])
		}
	})
}

// take takes the next object, which there has to be.
func take(t *testing.T, s *Sweep, now time.Time) *Object {
	t.Helper()
	object := s.Next(now)
	if object == nil {
		t.Fatal("there is no next object")
	}
	s.Take(object, RunTime(now.Sub(time.Unix(0, 0))))
	return object
}

func twoChunks(t *testing.T) *Sweep {
	t.Helper()
	s := New(Position{}, newer)
	if token, wanted := s.List(); token != "" || !wanted {
		t.Fatalf("the first list is %q, %v", token, wanted)
	}
	objects := []*Object{{Name: "a", ResourceVersion: "1"}, {Name: "b", ResourceVersion: "1"}}
	s.Listed(Chunk{Objects: objects, Next: "more", ResourceVersion: "10"})
	return s
}

func TestTheNextChunkIsListedAheadAndNotBegun(t *testing.T) {
	s, now := twoChunks(t), time.Unix(0, 0)
	if token, wanted := s.List(); token != "more" || !wanted {
		t.Fatalf("the second list is %q, %v", token, wanted)
	}
	s.Listed(Chunk{Objects: []*Object{{Name: "c", ResourceVersion: "1"}}, ResourceVersion: "10"})
	if _, wanted := s.List(); wanted {
		t.Error("a third chunk is listed")
	}
	a, b := take(t, s, now), take(t, s, now)
	if next := s.Next(now); next != nil {
		t.Errorf("%s is next while its chunk's turn has not come", next.Name)
	}
	s.Done(a, Rewritten, "", "")
	if _, done := s.ChunkDone(); done {
		t.Error("the chunk is done with an object in flight")
	}
	s.Done(b, Gone, "", "")
	position, done := s.ChunkDone()
	want := Position{Token: "more", Baseline: "10", Counts: Counts{Rewritten: 1, Gone: 1}}
	if diff := cmp.Diff(want, position); !done || diff != "" {
		t.Errorf("done is %v, and the position differs (-want +got):\n%s", done, diff)
	}
	s.Advance()
	if next := s.Next(now); next == nil || next.Name != "c" {
		t.Errorf("after the first chunk comes %+v", next)
	}
}

func TestAnObjectWaitsForItsTime(t *testing.T) {
	s, now := twoChunks(t), time.Unix(0, 0)
	a, b := take(t, s, now.Add(time.Minute)), take(t, s, now.Add(time.Hour))
	s.Retry(a, now.Add(2*time.Second))
	s.Retry(b, now.Add(time.Second))
	if object := s.Next(now); object != nil {
		t.Errorf("next is %v", object)
	}
	waiting, since, next := s.Waiting()
	if waiting != 2 || since != RunTime(time.Minute) || !next.Equal(now.Add(time.Second)) {
		t.Errorf("%d objects wait since %v, the next one until %v", waiting, since, next)
	}
	now = now.Add(3 * time.Second)
	if first, second := take(t, s, now), take(t, s, now); first != b || second != a {
		t.Errorf("%s comes before %s", first.Name, second.Name)
	}
	if b.Tries != 1 || s.Progress().Retried != 2 {
		t.Errorf("%d tries, %d retried", b.Tries, s.Progress().Retried)
	}
}

// TestFreshObjectsComeFirst has an object whose retry is due before all others were tried. If the object may be the
// reason, each try may take long, and must not keep the others waiting.
func TestFreshObjectsComeFirst(t *testing.T) {
	for failures, retryFirst := range map[int]bool{0: true, 1: false} {
		s, now := twoChunks(t), time.Unix(0, 0)
		a := take(t, s, now)
		a.Failures = failures
		s.Retry(a, now)
		now = now.Add(time.Minute)
		if first, second := take(t, s, now), take(t, s, now); (first == a) != retryFirst || (second == a) == retryFirst {
			t.Errorf("after %d failures of its own, %s comes before %s", failures, first.Name, second.Name)
		}
	}
}

func TestATokenThatExpiredIsReplacedInThePosition(t *testing.T) {
	s, now := twoChunks(t), time.Unix(0, 0)
	a, b := take(t, s, now), take(t, s, now)
	if _, wanted := s.List(); !wanted {
		t.Fatal("nothing is to be listed")
	}
	s.ListExpired("inconsistent")
	s.Done(a, Rewritten, "", "")
	s.Done(b, Rewritten, "", "")
	if position, _ := s.ChunkDone(); position.Token != "inconsistent" {
		t.Errorf("the sweep would be resumed with %q", position.Token)
	}
	s.Advance()
	if token, wanted := s.List(); token != "inconsistent" || !wanted {
		t.Fatalf("the list goes on with %q, %v", token, wanted)
	}
	objects := []*Object{{Name: "c", ResourceVersion: "9"}, {Name: "d", ResourceVersion: "11"},
		{Name: "e", ResourceVersion: "11", NeedsCleaning: true}}
	if skipped := s.Listed(Chunk{Objects: objects, ResourceVersion: "12"}); len(skipped) != 1 || skipped[0].Name != "d" {
		t.Errorf("skipped are %v, want d alone", skipped)
	}
	for _, want := range []string{"c", "e"} {
		if next := take(t, s, now); next.Name != want {
			t.Errorf("%s is rewritten, want %s", next.Name, want)
		}
	}
	if s.Next(now) != nil || s.Progress().Counts[WrittenByOthers] != 1 {
		t.Errorf("an object that was written since the baseline is rewritten: %+v", s.Progress().Counts)
	}
}

func TestASweepBeginsAnew(t *testing.T) {
	s, now := twoChunks(t), time.Unix(0, 0)
	a, b := take(t, s, now), take(t, s, now)
	s.Retry(a, now)
	s.Done(take(t, s, now), Rewritten, "", "")
	s.Done(b, Denied, "", "")
	s.Advance()
	s.Restart()
	want := Position{Baseline: "10", Retried: 1}
	if diff := cmp.Diff(want, s.Position()); diff != "" {
		t.Errorf("the position differs (-want +got):\n%s", diff)
	}
	if token, wanted := s.List(); token != "" || !wanted {
		t.Errorf("the list is %q, %v", token, wanted)
	}
}

func TestOutcomesAreComplete(t *testing.T) {
	if len(Outcomes) != int(outcomeCount)-1 {
		t.Errorf("%d outcomes are listed of %d", len(Outcomes), outcomeCount-1)
	}
	for _, outcome := range Outcomes {
		if outcome.String() == "" {
			t.Errorf("outcome %d has no name", outcome)
		}
	}
}

// TestObjectsLeft has outcomeCount stand for an outcome that somebody adds, and NoOutcome for a counter of it.
func TestObjectsLeft(t *testing.T) {
	if outcomeCount.Migrated() {
		t.Error("objects with an unknown outcome are migrated")
	}
	counts := Counts{NoOutcome: 1, Rewritten: 10, AlreadyCurrent: 20, WrittenByOthers: 40, Gone: 80, Denied: 2}
	if counts.Processed() != 153 || counts.Migrated() != 70 || counts.Left() != 3 {
		t.Errorf("of %d objects %d are migrated, and %d are left", counts.Processed(), counts.Migrated(), counts.Left())
	}
}

func TestASweepWithoutObjectsIsComplete(t *testing.T) {
	s := New(Position{}, newer)
	s.List()
	s.Listed(Chunk{ResourceVersion: "10"})
	if position, done := s.ChunkDone(); !done || !position.Complete {
		t.Errorf("done is %v, the position %+v", done, position)
	}
	s.Advance()
	if _, wanted := s.List(); wanted || !s.Complete() {
		t.Errorf("something is to be listed: %v; complete: %v", wanted, s.Complete())
	}
}
