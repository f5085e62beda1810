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

package manager

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	// soon is how long anything may take on a busy machine. Nothing is wrong with what takes longer than usual.
	soon = 10 * time.Minute

	pluginBinary = "plugin"

	gcController       = "storageversion-garbage-collector-controller"
	triggerController  = "storage-version-migration-trigger-controller"
	migratorController = "storage-version-migrator-controller"
)

// managerProcess is one running manager.
type managerProcess struct {
	*controlplane.Process
	name string
	port int
}

// startManager runs the binary as a user of the given name, which is how the audit log knows it.
func startManager(t *testing.T, cp *controlplane.ControlPlane, binary, name string, args ...string) *managerProcess {
	t.Helper()
	process, port := framework.StartManager(t, cp, framework.Process{
		Name: name, Program: binary, Config: cp.Config(name, framework.Masters),
		Args: slices.Concat([]string{"-v=2"}, framework.PatientElection, args),
	})
	return &managerProcess{Process: process, name: name, port: port}
}

// get asks the secure port as cfg's user, or as nobody, and returns the status code and the body; 0 if nothing answers.
func (p *managerProcess) get(t *testing.T, cfg *rest.Config, path string) (int, string) {
	t.Helper()
	tlsConfig := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the certificate is self-signed
	if cfg != nil {
		transportConfig, err := cfg.TransportConfig()
		if err != nil {
			t.Fatal(err)
		}
		if tlsConfig, err = transport.TLSConfigFor(transportConfig); err != nil {
			t.Fatal(err)
		}
		if tlsConfig == nil {
			tlsConfig = &tls.Config{}
		}
		tlsConfig.InsecureSkipVerify, tlsConfig.RootCAs = true, nil
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true, DisableCompression: true},
		Timeout:   time.Minute,
	}
	url := fmt.Sprintf("https://127.0.0.1:%d%s", p.port, path)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg != nil && cfg.BearerToken != "" {
		request.Header.Set("Authorization", "Bearer "+cfg.BearerToken)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// runs says whether the process reports that it runs the controller.
func (p *managerProcess) runs(t *testing.T, cp *controlplane.ControlPlane, controller string) bool {
	t.Helper()
	return p.gauge(t, cp, "running_managed_controllers", controller)
}

// gauge says whether the metric is 1 for a name.
func (p *managerProcess) gauge(t *testing.T, cp *controlplane.ControlPlane, metric, name string) bool {
	t.Helper()
	_, body := p.get(t, cp.AdminConfig(), "/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, metric+"{") && strings.Contains(line, `name="`+name+`"`) {
			return strings.HasSuffix(line, "} 1\n")
		}
	}
	return false
}

// eventually polls until ok says yes, and fails the test with what was awaited when that takes too long. A look may
// take a handshake and a large answer, so it rests for ten times as long as the look took.
func eventually(t *testing.T, timeout time.Duration, awaited string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for began := time.Now(); !ok(); began = time.Now() {
		if began.After(deadline) {
			t.Fatalf("not within %v: %s", timeout, awaited)
		}
		time.Sleep(max(200*time.Millisecond, min(10*time.Since(began), 2*time.Second)))
	}
}

// unanswered is part of a line that the manager logs when an API server does not answer in time whether it serves a
// resource.
const unanswered = "asking the API server for it failed"

// checkRepeats wants the log to say the words so many times at most, and once more for each line that comes between.
func checkRepeats(t *testing.T, log, words string, most int, between string) {
	t.Helper()
	most += strings.Count(log, between)
	if n := strings.Count(log, words); n > most {
		t.Errorf("the log says %d times, want %d at most: %s\n%s", n, most, words, log)
	}
}

func client(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lease returns the lease of that name in kube-system, or nil.
func lease(ctx context.Context, c kubernetes.Interface, name string) *coordinationv1.Lease {
	l, err := c.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return l
}

// holder returns who holds the lease, or nothing.
func holder(ctx context.Context, c kubernetes.Interface, name string) string {
	if l := lease(ctx, c, name); l != nil && l.Spec.HolderIdentity != nil {
		return *l.Spec.HolderIdentity
	}
	return ""
}

// leads says whether the process believes to lead: only a leader runs controllers.
func (p *managerProcess) leads(t *testing.T, cp *controlplane.ControlPlane) bool {
	t.Helper()
	return p.gauge(t, cp, "leader_election_master_status", "svm-controller-manager")
}

// part is one of several tests on one control plane.
type part struct {
	name string
	run  func(t *testing.T, cp *controlplane.ControlPlane)
}

// inTurn runs parts one after the other, because each start of a control plane costs seconds. None follows one that
// failed, which may have left the servers as no other expects them.
func inTurn(t *testing.T, cp *controlplane.ControlPlane, parts ...part) {
	for _, one := range parts {
		if !t.Run(one.name, func(t *testing.T) { one.run(t, cp) }) {
			return
		}
	}
}

// startStorageVersionAPI starts a server of StorageVersion objects, without the migration API.
func startStorageVersionAPI(t *testing.T, server controlplane.Server) *controlplane.ControlPlane {
	t.Helper()
	return controlplane.Start(t, controlplane.Config{
		Servers: []controlplane.Server{controlplane.StorageVersionAPI(server)},
	})
}

func installMigrationAPI(t *testing.T, cp *controlplane.ControlPlane) {
	t.Helper()
	if err := controlplane.InstallMigrationAPI(t.Context(), cp.AdminConfig()); err != nil {
		t.Fatal(err)
	}
}
