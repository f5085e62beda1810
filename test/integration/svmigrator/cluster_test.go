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

package svmigrator

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/migration/crds"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	masters     = "system:masters"
	managerUser = "svm-manager"
	clockFormat = "15:04:05.000"

	// settle is the settle period of the managers in these tests, which state what is promised by themselves.
	settle = 2 * time.Second
	// soon is how long what takes several steps may take on a busy machine.
	soon = time.Minute
	// logTail is how much of a manager's log a failed test shows.
	logTail = 150
)

// quickElection makes leases change hands within seconds.
var quickElection = []string{
	"--leader-elect=true", "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms",
}

// cluster is a control plane with the migration API, clients for it.
type cluster struct {
	*controlplane.ControlPlane
	config     *rest.Config
	kube       kubernetes.Interface
	dynamic    dynamic.Interface
	extensions apiextensions.Interface
	migration  versioned.Interface
}

// startCluster starts servers, and installs the definitions of the migration API.
func startCluster(t *testing.T, servers ...controlplane.Server) *cluster {
	t.Helper()
	cp := controlplane.Start(t, controlplane.Config{Servers: servers})
	return useCluster(t, cp, cp.AdminConfig())
}

// useCluster makes clients of cfg for a control plane that has no migration API yet.
func useCluster(t *testing.T, cp *controlplane.ControlPlane, cfg *rest.Config) *cluster {
	t.Helper()
	c := &cluster{ControlPlane: cp, config: cfg}
	var err error
	if c.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.extensions, err = apiextensions.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.migration, err = versioned.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	c.installAPI(t)
	return c
}

func (c *cluster) installAPI(t *testing.T) {
	t.Helper()
	objects, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, definition); err != nil {
			t.Fatal(err)
		}
		if _, err := c.extensions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, soon, func(ctx context.Context) error {
		_, err := c.migration.MigrationV1alpha1().StorageVersionMigrations().List(ctx, metav1.ListOptions{})
		return err
	})
}

// startManager runs the migrator alone, without an election, at the settle period of these tests. Later arguments
// take the place of earlier ones.
func (c *cluster) startManager(t *testing.T, name string, args ...string) *controlplane.Process {
	t.Helper()
	return c.startManagerAt(t, c.Config(managerUser, masters), name, args...)
}

// startManagerAt is startManager for a manager that talks to where cfg leads.
func (c *cluster) startManagerAt(t *testing.T, cfg *rest.Config, name string, args ...string) *controlplane.Process {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), name+".kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, cfg); err != nil {
		t.Fatal(err)
	}
	args = append([]string{
		"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", freePort(t)), "-v=4",
		"--controllers=svmigrator", "--leader-elect=false", "--settle-period=" + settle.String(),
	}, args...)
	process := c.Run(t, name, filepath.Join(os.Getenv(binariesEnv), managerBinary), args...)
	t.Cleanup(func() { checkLog(t, process) })
	return process
}

// misbehaviour is what must never be in a log.
var misbehaviour = regexp.MustCompile(`(?m)^.*(DATA RACE|panic:|Observed a panic|must contain currentStorageVersionHash|an entry leaves persisted|epoch never goes down).*$`)

func checkLog(t *testing.T, process *controlplane.Process) {
	log := process.Log()
	if found := misbehaviour.FindAllString(log, 3); len(found) > 0 {
		t.Errorf("the log of %s has:\n%s", process.Name(), strings.Join(found, "\n"))
	}
	if t.Failed() {
		lines := strings.Split(strings.TrimSpace(log), "\n")
		t.Logf("the end of the log of %s:\n%s", process.Name(), strings.Join(lines[max(0, len(lines)-logTail):], "\n"))
	}
}

// stopManager asks the manager to end and wants it to end well.
func stopManager(t *testing.T, process *controlplane.Process) {
	t.Helper()
	if err := process.Stop(); err != nil {
		t.Errorf("stopping %s: %v", process.Name(), err)
	}
	if err := process.Wait(); err != nil {
		t.Errorf("%s was asked to end and ended with %v", process.Name(), err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// eventually polls until check has nothing to complain about.
func eventually(t *testing.T, within time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		if err := check(ctx); ctx.Err() == nil || last == nil {
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("after %v still: %v", within, last)
	}
}
