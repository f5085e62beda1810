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

// TestInterruptedRetries does not count the time in which nothing is tried.
func TestInterruptedRetries(t *testing.T) {
	now := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	s := New(Position{}, newer)
	s.List()
	s.Listed(Chunk{ResourceVersion: "100", Objects: []*Object{{Name: "a", ResourceVersion: "1"}}})
	object := s.Next(now)
	s.Take(object, now)
	object.FailingSince = now
	s.Retry(object, now.Add(time.Second))
	s.Interrupt(now.Add(time.Second))
	s.Resume(now.Add(time.Second + 2*time.Hour))
	want := now.Add(2 * time.Hour)
	if _, since, _ := s.Waiting(); !since.Equal(want) || !object.FailingSince.Equal(want) {
		t.Errorf("it fails since %v and %v, want %v", since, object.FailingSince, want)
	}
}
