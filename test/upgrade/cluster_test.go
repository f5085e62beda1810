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

package upgrade

import (
	"testing"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// release is how servers of a release of Kubernetes are run, and in which versions they store bindings and classes.
type release struct{ binary, bindings, classes string }

var releases = map[string]release{
	"1.34": {"kube-apiserver-1.34", "v1alpha1", "v1beta1"},
	"1.35": {"kube-apiserver-1.35", "v1beta1", "v1beta1"},
	"1.36": {"kube-apiserver-1.36", "v1beta1", "v1"},
	"1.37": {"kube-apiserver", "v1", "v1"},
}

func TestMain(m *testing.M) {
	servers := []string{"kubectl", "kube-controller-manager"}
	for _, r := range releases {
		servers = append(servers, r.binary)
	}
	framework.Main(m, servers, "sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm")
}

// binary is the path of the server of a release.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := controlplane.Binary(releases[name].binary)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cluster is a control plane, and how many objects the test has created there.
type cluster struct {
	*framework.Cluster
	objects int
}

func start(t *testing.T, cfg controlplane.Config) *cluster {
	t.Helper()
	cp := controlplane.Start(t, cfg)
	return &cluster{Cluster: framework.Use(t, cp, cp.Config("admin", framework.Masters))}
}
