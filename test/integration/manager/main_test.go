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

// Package manager tests the binary: what a process of it does against real API servers, in its life as a leader, a standby,
// before the API server, and after the loss of its lease.
package manager

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// binariesEnv hands the folder of the built programs to the run of this test inside its namespaces.
const binariesEnv = "SVM_TEST_MANAGER_BINARIES"

func TestMain(m *testing.M) {
	if os.Getenv(binariesEnv) == "" {
		if err := build(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	controlplane.Main(m, "kube-controller-manager")
}

// build builds the manager, and a manager with controllers of somebody else's, with the race detector where it is to be had
// (it needs a C compiler).
func build() error {
	cgo, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs("../../../_output/test")
	if err != nil {
		return err
	}
	for _, pkg := range []string{"../../../cmd/svm-controller-manager", "./plugin"} {
		out, err := exec.Command("go", "build", fmt.Sprintf("-race=%t", strings.TrimSpace(string(cgo)) == "1"), "-o", filepath.Join(dir, filepath.Base(pkg)), pkg).CombinedOutput()
		if err != nil {
			return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
	}
	return os.Setenv(binariesEnv, dir)
}
