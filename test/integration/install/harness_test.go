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

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	root      = "../../.."
	manifests = root + "/build/manifests"
	// soon is how long what takes several steps may take on a busy machine.
	soon = 10 * time.Minute

	user           = "system:svm-controller-manager"
	namespace      = "svm-system"
	account        = "svm-controller-manager"
	serviceAccount = "system:serviceaccount:" + namespace + ":" + account
	admissionGroup = "admissionregistration.k8s.io"
	// observesOnly is what kubectl svm says where no migrator runs.
	observesOnly = "only observes"
)

func TestMain(m *testing.M) {
	if out, err := exec.Command(root+"/hack/build-controlplane.sh", "kubectl", "kubeadm").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building kubectl and kubeadm: %v\n%s", err, out)
		os.Exit(1)
	}
	framework.Main(m, []string{"kube-controller-manager"}, root+"/cmd/kubectl-svm")
}

// cluster is a control plane, and kubectl as its administrator.
type cluster struct {
	*framework.Cluster
	kubeconfig string
}

func startCluster(t *testing.T, server controlplane.Server) *cluster {
	t.Helper()
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{server}, Hosts: true})
	c := &cluster{framework.Use(t, cp, cp.AdminConfig()), filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cp.WriteKubeconfig(c.kubeconfig, c.AdminConfig); err != nil {
		t.Fatal(err)
	}
	return c
}

// kubectl runs a command as the administrator, with input, and returns what it wrote.
func (c *cluster) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	command := kubectl(t, append(args, "--kubeconfig="+c.kubeconfig)...)
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func kubectl(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), root+"/_output/bin/kubectl", args...)
	command.Env = []string{"HOME=" + t.TempDir()}
	return command
}

// plan is what kubectl svm plan prints.
func (c *cluster) plan(t *testing.T) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), framework.Binary("kubectl-svm"), "plan", "--kubeconfig="+c.kubeconfig)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// render returns the objects of a folder of the manifests.
func render(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	command := kubectl(t, "kustomize", filepath.Join(manifests, folder))
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("rendering %s: %v\n%s", folder, err, &complaints)
	}
	return decode(t, bytes.NewReader(out))
}

// decode returns the objects of a stream of YAML documents.
func decode(t *testing.T, in io.Reader) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(in, 4096); ; {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		case object.Object != nil:
			objects = append(objects, object)
		}
	}
}

// find returns an object of these.
func find[T any](t *testing.T, objects []*unstructured.Unstructured, kind, namespace, name string) *T {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() != kind || object.GetNamespace() != namespace || object.GetName() != name {
			continue
		}
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			t.Fatal(err)
		}
		return typed
	}
	t.Fatalf("there is no %s %s/%s", kind, namespace, name)
	return nil
}

// startManager runs the manager with the arguments of a manifest. Some arguments are added that make it quicker.
func (c *cluster) startManager(
	t *testing.T, name string, config *rest.Config, args ...string,
) (*controlplane.Process, int) {
	t.Helper()
	args = append(args, framework.PatientElection...)
	args = append(args, "--settle-period=2s", "-v=2")
	return framework.StartManager(t, c.ControlPlane, framework.Process{Name: name, Config: config, Args: args})
}
