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
	"testing"
	"time"
)

// TestForgetListed has one object of the second chunk done, and the third chunk listed.
func TestForgetListed(t *testing.T) {
	now := time.Time{}
	s := New(Position{}, newer)
	list := func(want string, next string, names ...string) {
		t.Helper()
		token, wanted := s.List()
		if !wanted || token != want {
			t.Fatalf("a list with %q is wanted (%t), want one with %q", token, wanted, want)
		}
		c := Chunk{ResourceVersion: "100", Next: next}
		for _, name := range names {
			c.Objects = append(c.Objects, &Object{Name: name, ResourceVersion: "1"})
		}
		s.Listed(c)
	}
	finish := func() {
		object := s.Next(now)
		s.Take(object, 0)
		s.Done(object, Rewritten, "", "")
	}
	list("", "2", "a")
	list("2", "3", "b", "c")
	finish()
	s.Advance()
	finish()
	list("3", "", "d")
	s.ForgetListed()
	if p := s.Progress(); p.Counts[Rewritten] != 1 || p.Token != "2" || p.Baseline != "100" {
		t.Errorf("it is at %+v, want the beginning of the second chunk", p)
	}
	list("2", "3", "b", "c")
	list("3", "", "d")
	for range 2 {
		finish()
	}
	s.Advance()
	finish()
	s.Advance()
	if !s.Complete() || s.Position().Counts[Rewritten] != 4 {
		t.Errorf("it ends with %+v", s.Position())
	}
}
