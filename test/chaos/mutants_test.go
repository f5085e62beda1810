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

	"sigs.k8s.io/svm-controller-manager/test/chaos/failpoint"
)

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

// runMutant wants that the validators see the mistake of a mutant.
func runMutant(t *testing.T, m Mutant, config Config) {
	t.Helper()
	var err error
	if config.Manager, err = m.Build("../..", t.TempDir()); err != nil {
		t.Fatal(err)
	}
	config.Seed, config.Faults = m.Seed, m.Faults
	config.Dir = filepath.Join(t.TempDir(), "run")
	report, err := Run(t.Context(), config)
	if report == nil {
		t.Fatal(err)
	}
	var text strings.Builder
	report.Text(&text)
	t.Log("\n" + text.String())
	for _, v := range report.Violations {
		if strings.HasPrefix(v.Promise, m.Promise) {
			return
		}
	}
	t.Errorf("%q broke no promise: %v", m.Name, err)
}
