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

package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	etcdBinary         = "etcd"
	serverBinary       = "kube-apiserver"
	sampleServerBinary = "sample-apiserver"
	controllersBinary  = "kube-controller-manager"

	buildScript       = "hack/build-controlplane.sh"
	binariesPath      = "_output/bin"
	workspaceFile     = "go.work"
	binariesModule    = "test/controlplane/binaries"
	binariesModuleMod = binariesModule + "/go.mod"
	sourceDepth       = 3 // this file is test/controlplane/binaries.go
)

// Binary returns the path of a binary in _output/bin of this repository, such as kube-controller-manager, and builds it
// when it is missing or outdated.
func Binary(name string) (string, error) { return findBinary("", name) }

// findBinary is the path of a binary in dir, or in _output/bin if dir is empty.
func findBinary(dir, name string) (string, error) {
	if err := buildMissing(dir, name); err != nil {
		return "", err
	}
	if dir == "" {
		root, err := repositoryRoot()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, binariesPath)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("looking for %s: %w", name, err)
	}
	return path, nil
}

// buildMissing builds those of names that are missing in _output/bin or older than the file that pins them. A folder
// that somebody else named is their business.
func buildMissing(dir string, names ...string) error {
	if dir != "" {
		return nil
	}
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	var missing []string
	for _, name := range names {
		current, err := upToDate(filepath.Join(root, binariesPath, name), filepath.Join(root, pinOf(name)))
		if err != nil {
			return err
		}
		if !current {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	cmd := exec.Command(filepath.Join(root, buildScript), missing...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = childAttributes()
	t := newThread()
	defer t.end()
	if err := t.do(cmd.Run); err != nil {
		return fmt.Errorf("building %v with %s: %w%s", missing, buildScript, err, buildAdvice(missing))
	}
	return nil
}

// pinOf is the go.mod that pins a binary: hack/build-controlplane.sh builds it from the same module.
func pinOf(name string) string {
	release, older := strings.CutPrefix(name, serverBinary+"-")
	switch {
	case older:
		return filepath.Join(binariesModule, "v"+release, "go.mod")
	case name == "prometheus" || name == "promtool":
		return filepath.Join(binariesModule, "prometheus", "go.mod")
	default:
		return binariesModuleMod
	}
}

func buildAdvice(missing []string) string {
	if entered() != nil {
		return ""
	}
	return fmt.Sprintf(
		" (there is no Internet inside of the namespaces: run %s %v before, or name them in Main)", buildScript, missing,
	)
}

// upToDate tells whether binary exists and is not older than pin.
func upToDate(binary, pin string) (bool, error) {
	pinned, err := os.Stat(pin)
	if err != nil {
		return false, fmt.Errorf("looking at what pins the binaries: %w", err)
	}
	built, err := os.Stat(binary)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a binary: %w", err)
	}
	return !built.ModTime().Before(pinned.ModTime()), nil
}

// repositoryRoot finds the root by this file's place in it, or, in binaries that do not know their sources, from the
// working directory upwards.
func repositoryRoot() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok {
		root := file
		for range sourceDepth {
			root = filepath.Dir(root)
		}
		if isRoot(root) {
			return root, nil
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for the repository: %w", err)
	}
	for !isRoot(dir) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New(
				"looking for the repository: there is none around the working directory; say where the binaries are",
			)
		}
		dir = parent
	}
	return dir, nil
}

func isRoot(dir string) bool {
	for _, path := range []string{workspaceFile, binariesModuleMod} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			return false
		}
	}
	return true
}
