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

package framework

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// Manager is the name of the program under test.
	Manager = "svm-controller-manager"
	// binariesEnv hands the folder of the built programs to the run of a test inside its namespaces.
	binariesEnv = "SVM_TEST_BINARIES"
)

// Main runs the tests of a package beside the manager, which it builds, and beside the programs that are in other
// packages of the test's. It needs those servers besides etcd and kube-apiserver.
func Main(m *testing.M, servers []string, packages ...string) {
	if os.Getenv(binariesEnv) == "" {
		if err := build(append(packages, "sigs.k8s.io/"+Manager+"/cmd/"+Manager)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	controlplane.Main(m, servers...)
}

// build builds programs, with the race detector where it is to be had (it needs a C compiler).
func build(packages []string) error {
	cgo, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil {
		return fmt.Errorf("asking for CGO_ENABLED: %w", err)
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/"+Manager).Output()
	if err != nil {
		return fmt.Errorf("locating the folder of test binaries: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "_output", "test")
	race := fmt.Sprintf("-race=%t", strings.TrimSpace(string(cgo)) == "1")
	for _, path := range packages {
		out, err := exec.Command("go", "build", race, "-o", filepath.Join(dir, filepath.Base(path)), path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("building %s: %w\n%s", path, err, out)
		}
	}
	return os.Setenv(binariesEnv, dir)
}

// Binary is the path of a program that Main built.
func Binary(name string) string { return filepath.Join(os.Getenv(binariesEnv), name) }
