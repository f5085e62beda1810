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
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const migrationLease = "svm-takeover"

// testLeaderMigration takes the garbage collector over from kube-controller-manager as an administrator does it in a
// rolling upgrade: first both know of the shared lease, then the owner changes, one process after the other. The lease
// shows that there never are two.
//
// While it owns the controller, kube-controller-manager is played by a lease in its name: that of Kubernetes 1.37.1
// ends itself as soon as it holds the shared lease, because it registers the name of its informers twice. From when
// this manager owns the controller it is the real one.
func testLeaderMigration(t *testing.T, cp *controlplane.ControlPlane) {
	c := client(t, cp.AdminConfig())
	leases := c.CoordinationV1().Leases(metav1.NamespaceSystem)
	kubeOwns, svmOwns := migrationConfig(t, "kube-controller-manager"), migrationConfig(t, "svm-controller-manager")

	const kubeHolder = "kube-controller-manager"
	now := metav1.NowMicro()
	shared, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: migrationLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(kubeHolder), LeaseDurationSeconds: ptr.To[int32](3600), AcquireTime: &now, RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	before := startManager(
		t,
		cp,
		framework.Manager,
		"svm-before",
		append([]string{
			"--enable-leader-migration", "--leader-migration-config=" + kubeOwns,
		}, framework.PatientElection...)...)
	eventually(t, soon, "the manager leads", func() bool { return before.leads(t, cp) })
	if before.runs(t, cp, gcController) ||
		!strings.Contains(before.Log(), "Leader migration gives the controller to another manager") {
		t.Errorf("the manager runs a controller that is not its own, or does not say whose it is:\n%s", before.Log())
	}
	framework.StopManager(t, before.Process)

	after := startManager(
		t,
		cp,
		framework.Manager,
		"svm-after",
		append([]string{
			"--enable-leader-migration", "--leader-migration-config=" + svmOwns,
		}, framework.PatientElection...)...)
	eventually(t, soon, "the manager waits for the shared lease", func() bool {
		return after.leads(t, cp) && strings.Contains(after.Log(), `lock="kube-system/`+migrationLease+`"`)
	})
	if after.runs(t, cp, gcController) || holder(t.Context(), c, migrationLease) != kubeHolder {
		t.Error("the manager runs the controller while kube-controller-manager holds the shared lease")
	}

	// The old kube-controller-manager goes.
	shared.Spec.HolderIdentity, shared.Spec.LeaseDurationSeconds = ptr.To(""), ptr.To[int32](1)
	if _, err := leases.Update(t.Context(), shared, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the manager runs the controller", func() bool { return after.runs(t, cp, gcController) })
	ours := holder(t.Context(), c, migrationLease)
	if ours == kubeHolder || ours == "" {
		t.Errorf("the shared lease is held by %q", ours)
	}

	// The new one comes, and leaves the controller alone.
	kube := startKubeControllerManager(t, cp, svmOwns)
	eventually(t, soon, "kube-controller-manager waits for the shared lease", func() bool {
		return strings.Contains(kube.Log(), `"Attempting to acquire leader lease..." lock="kube-system/`+migrationLease+`"`)
	})
	if h := holder(t.Context(), c, migrationLease); h != ours {
		t.Errorf("the shared lease went from %q to %q", ours, h)
	}
	if err := kube.Stop(); err != nil {
		t.Errorf("stopping kube-controller-manager: %v", err)
	}
	framework.StopManager(t, after.Process)
	if h := holder(t.Context(), c, migrationLease); h != "" {
		t.Errorf("after a clean stop the shared lease is still held by %q", h)
	}
}

func migrationConfig(t *testing.T, owner string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), owner+".yaml")
	content := fmt.Sprintf(`apiVersion: controllermanager.config.k8s.io/v1
kind: LeaderMigrationConfiguration
leaderName: %s
controllerLeaders:
- name: %s
  component: %s
`, migrationLease, gcController, owner)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func startKubeControllerManager(
	t *testing.T, cp *controlplane.ControlPlane, migrationConfig string,
) *controlplane.Process {
	t.Helper()
	p, err := cp.StartControllerManager("", append([]string{
		"--feature-gates=StorageVersionAPI=true",
		// Leader migration of kube-controller-manager crashes without its token controller.
		"--controllers=serviceaccount-token-controller," + gcController,
		"--leader-elect=true", "--enable-leader-migration", "--leader-migration-config=" + migrationConfig,
	}, framework.PatientElection...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			fmt.Printf("log of kube-controller-manager:\n%s\n", p.Log())
		}
	})
	return p
}
