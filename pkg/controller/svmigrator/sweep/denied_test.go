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
	"slices"
	"strings"
	"testing"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestSomeDeniedObjectsAreNamed(t *testing.T) {
	const objects = migrationv1alpha1.MaxDeniedObjects + 5
	s, now := New(Position{}, newer), time.Unix(0, 0)
	for _, next := range []string{"more", ""} {
		s.List()
		s.Listed(Chunk{Objects: slices.Repeat([]*Object{{}}, objects), ResourceVersion: "10", Next: next})
		for range objects {
			s.Done(take(t, s, now), Denied, "", "no")
		}
		s.Advance()
		p := s.Position()
		if named := len(p.Denied); named != migrationv1alpha1.MaxDeniedObjects || p.Counts[Denied]%objects != 0 {
			t.Errorf("%d denied objects are named of %d", named, p.Counts[Denied])
		}
	}
}

// TestDeniedObjectWithALongName has a Role whose name the status of a migration cannot have.
func TestDeniedObjectWithALongName(t *testing.T) {
	s := New(Position{}, newer)
	s.List()
	s.Listed(Chunk{Objects: []*Object{
		{Name: strings.Repeat("é", migrationv1alpha1.MaxDeniedObjectNameLength+1)},
		{Name: strings.Repeat("é", migrationv1alpha1.MaxDeniedObjectNameLength)},
	}, ResourceVersion: "10"})
	for range 2 {
		s.Done(take(t, s, time.Unix(0, 0)), Denied, "", "no")
	}
	if p, _ := s.ChunkDone(); len(p.Denied) != 1 || p.Counts[Denied] != 2 {
		t.Errorf("%d denied objects are named of %d", len(p.Denied), p.Counts[Denied])
	}
}
