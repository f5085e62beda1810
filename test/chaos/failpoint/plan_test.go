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

package failpoint

import (
	"reflect"
	"testing"
	"time"
)

// TestPlansAreReplayable wants that a seed always gives the same plans, and that a long run has every kind of fault.
func TestPlansAreReplayable(t *testing.T) {
	one, other, third := NewPlanner(7), NewPlanner(7), NewPlanner(8)
	seen, differs := map[string]bool{}, false
	for range 10 {
		plan := one.Round(time.Minute)
		if again := other.Round(time.Minute); !reflect.DeepEqual(plan, again) {
			t.Fatalf("the same seed gives %v and %v", plan, again)
		}
		differs = differs || !reflect.DeepEqual(plan, third.Round(time.Minute))
		end := time.Duration(0)
		for _, step := range plan.Faults {
			if seen[step.Kind] = true; step.At < end {
				t.Errorf("%v begins before the one before has ended", step)
			}
			end = step.At + step.For
		}
	}
	if !differs {
		t.Error("two seeds give the same plans")
	}
	for _, kind := range Kinds() {
		if !seen[kind] {
			t.Errorf("ten minutes without %q", kind)
		}
	}
}
