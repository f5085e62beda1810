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

package chaos

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/chaos/failpoint"
	"sigs.k8s.io/svm-controller-manager/test/chaos/validate"
)

// mutantDuration is how long a mistake may stay unseen. A round ends with the first one that is seen.
const mutantDuration = 5 * time.Minute

// TestMutantsApply wants that each mutant fits the sources of now, so that nobody finds out only when trying it.
func TestMutantsApply(t *testing.T) {
	for _, m := range Mutants {
		if _, err := m.overlay("../..", t.TempDir()); err != nil {
			t.Error(err)
		}
		for _, kind := range m.Faults {
			if !slices.Contains(failpoint.Kinds(), kind) {
				t.Errorf("%q: there is no fault %q", m.Name, kind)
			}
		}
	}
}

// tryMutants wants that the validators see the mistake of each mutant.
func tryMutants(t *testing.T) {
	for _, m := range Mutants {
		t.Run(m.Name, func(t *testing.T) {
			program, err := m.Build("../..", t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			report, err := Run(t.Context(), Config{
				Seed: m.Seed, Duration: mutantDuration, Round: *roundLength, Faults: m.Faults, Manager: program,
				Dir: filepath.Join(t.TempDir(), "run"), Logf: t.Logf,
			})
			if report == nil {
				t.Fatal(err)
			}
			var text strings.Builder
			report.Text(&text)
			t.Log("\n" + text.String())
			if !slices.ContainsFunc(report.Violations, func(v validate.Violation) bool {
				return strings.HasPrefix(v.Promise, m.Promise)
			}) {
				t.Errorf("it broke no promise: %v", err)
			}
		})
	}
}
