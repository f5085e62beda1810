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
	"os"
	"path/filepath"
	"testing"
)

// TestPins wants each binary to be compared with the go.mod that pins it, not with that of others.
func TestPins(t *testing.T) {
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etcd":                "test/controlplane/binaries/go.mod",
		"kube-apiserver":      "test/controlplane/binaries/go.mod",
		"kubectl":             "test/controlplane/binaries/go.mod",
		"kube-apiserver-1.34": "test/controlplane/binaries/v1.34/go.mod",
		"prometheus":          "test/controlplane/binaries/prometheus/go.mod",
		"promtool":            "test/controlplane/binaries/prometheus/go.mod",
	} {
		got := pinOf(name)
		if got != want {
			t.Errorf("%s is compared with %s, want %s", name, got, want)
		}
		if _, err := os.Stat(filepath.Join(root, got)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
