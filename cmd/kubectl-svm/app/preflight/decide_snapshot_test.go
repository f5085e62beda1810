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

package preflight

import (
	"strings"
	"testing"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
)

// TestWhoWritesWhatIsMissing advises to run a manager only if none runs.
func TestWhoWritesWhatIsMissing(t *testing.T) {
	for says, manager := range map[string]assess.Manager{
		"Run svm-controller-manager":                                   {Message: "None runs."},
		"A manager runs, and writes them within two minutes":           {Running: true},
		"The manager that leads has not written them. If a definition": {Running: true, Established: true},
	} {
		for _, missing := range [][]string{nil, {"secrets"}} {
			in := Snapshot{Now: now, Manager: manager, Missing: missing}
			if missing != nil {
				in.States = append(in.States, state("Widget", "widgets.example.com", "example.com/v1"))
			}
			var found Findings
			found.aboutMissing(in)
			if len(found) != 1 || !strings.Contains(found[0].Message, says) {
				t.Errorf("%+v runs, and the findings are %+v", manager, found)
			}
		}
	}
}
