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
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Mutant is a manager with a mistake. A promise of it is broken, and the validators have to see that.
type Mutant struct {
	Name string
	// File is where the mistake is made, below the root of the repository, by replacing Old, which is there once.
	File, Old, New string
	// Promise is what the violation is of.
	Promise string
	// Faults are those that show it, in rounds of this seed.
	Seed   uint64
	Faults []string
}

// Mutants are those that the validators are tried with.
var Mutants = []Mutant{
	{
		Name: "takes an error for an object that is done", Promise: "P2",
		File: "pkg/controller/svmigrator/rewrite/object.go",
		Old:  "\ta.failure = r.classify(ctx, object, err)\n\tswitch kind",
		New: "\tif a.failure = r.classify(ctx, object, err); a.failure.Passes() {\n\t\ta.outcome = sweep.WrittenByOthers\n" +
			"\t\treturn a\n\t}\n\tswitch kind",
		Seed: 30, Faults: []string{"validation webhook away", "conversion webhook away", "kill server"},
	},
	{
		Name: "takes the success of an earlier epoch for a proof", Promise: "P1",
		File: "pkg/controller/svmtrigger/decide_migration.go",
		Old:  "target != nil && target.Epoch != nil && *target.Epoch == e.next.Epoch &&",
		New:  "target != nil && target.Epoch != nil &&",
		Seed: 30, Faults: []string{"kill manager", "pause etcd"},
	},
	{
		Name: "forgets the encodings of before", Promise: "P1",
		File: "pkg/controller/svmtrigger/decide_evidence.go",
		Old:  "\te.next.PersistedStorageVersionHashes = persisted\n",
		New: "\tif current != e.old.CurrentStorageVersionHash && current != storageversion.Unknown {\n" +
			"\t\tpersisted = []string{current}\n\t}\n\te.next.PersistedStorageVersionHashes = persisted\n",
		Seed: 30, Faults: []string{"kill manager", "pause etcd"},
	},
	{
		Name: "prunes storedVersions although objects are denied", Promise: "P1",
		File: "pkg/controller/svmigrator/finish.go",
		Old:  "if err == nil && left == 0 {", New: "if err == nil {",
		Seed: 30, Faults: []string{"deny objects"},
	},
	{
		Name: "names no denied objects", Promise: "P6",
		File: "pkg/controller/svmigrator/progress.go",
		Old:  "status.DeniedObjects = position.Denied\n", New: "status.DeniedObjects = nil\n",
		Seed: 30, Faults: []string{"deny objects"},
	},
}

// overlay writes what go build needs to see the mistake in place of the right file.
func (m Mutant) overlay(root, dir string) (path string, err error) {
	file, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	right, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(right), m.Old); n != 1 {
		return "", fmt.Errorf("%q: what it replaces is %d times in %s", m.Name, n, m.File)
	}
	wrong := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(wrong, []byte(strings.Replace(string(right), m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: wrong}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, replace, 0o600)
}

// Build builds the mutant from the sources below root, and returns its path.
func (m Mutant) Build(root, dir string) (string, error) {
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "mutant")
	command := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./cmd/svm-controller-manager")
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the mutant %q: %w\n%s", m.Name, err, out)
	}
	return program, nil
}
