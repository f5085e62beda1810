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
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/svm-api/migration/crds"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// TestRestoredEtcd puts back an earlier state of etcd. It does so twice after an upgrade: with the release of the API
// server under a manager that leads and one that stands by, and alone under one that needs no lease. Leases survive the
// outage, so nothing else ends any of them.
func TestRestoredEtcd(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{{
		AllowAll: true, EmulatedVersion: "1.36", RuntimeConfig: []string{"admissionregistration.k8s.io/v1beta1=true"},
	}}})
	downgrade := func(s *controlplane.Server) { s.EmulatedVersion = "1.36" }
	ours, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, cp, ours...)
	start := func(name string, args ...string) *managerProcess {
		args = append(args, "--controllers=svmtrigger", "--auto-migrate=-*")
		return startManager(t, cp, framework.Manager, name, args...)
	}
	patient := []string{"--leader-elect-lease-duration=20m", "--leader-elect-renew-deadline=15m"}
	first, second := start("first", patient...), start("second", patient...)
	awaitPolicies(t, cp, "v1beta1")
	backup := filepath.Join(t.TempDir(), "etcd")
	if err := cp.Etcd().Save(backup); err != nil {
		t.Fatal(err)
	}

	testRestore(t, cp, backup, downgrade, first, second)
	next := start("next", "--leader-elect=false")
	awaitPolicies(t, cp, "v1beta1")
	testRestore(t, cp, backup, nil, next)
	const leased = "leased"
	testOvertakenRestore(t, cp, leased, start(leased, append(patient, "--leader-elect-resource-name="+leased)...))
	start("last", "--leader-elect=false")
	awaitPolicies(t, cp, "v1")
}

// testOvertakenRestore has etcd get to later revisions than before the restore, before anybody can see that it went
// back, as with etcdutl snapshot restore --bump-revision. Only the lease of the leader shows that.
func testOvertakenRestore(t *testing.T, cp *controlplane.ControlPlane, name string, leader *managerProcess) {
	t.Helper()
	kube, etcd := client(t, cp.AdminConfig()), cp.Etcd()
	renewedAfter := func(earlier time.Time) time.Time {
		var renewed time.Time
		eventually(t, soon, "the leader renews its lease", func() bool {
			l := lease(t.Context(), kube, name)
			if l != nil && l.Spec.RenewTime != nil {
				renewed = l.Spec.RenewTime.Time
			}
			return renewed.After(earlier)
		})
		return renewed
	}
	renewed := renewedAfter(time.Time{})
	backup := filepath.Join(t.TempDir(), "etcd")
	if err := etcd.Save(backup); err != nil {
		t.Fatal(err)
	}
	renewedAfter(renewedAfter(renewed))
	if err := cp.Servers()[0].Stop(); err != nil {
		t.Fatal(err)
	}
	revision := func() int64 {
		answer, err := etcd.Client().Put(t.Context(), "mark", "")
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	before := revision()
	if err := etcd.Restore(backup); err != nil {
		t.Fatal(err)
	}
	for revision() <= before {
		continue
	}
	if err := cp.Servers()[0].Restart(nil); err != nil {
		t.Fatal(err)
	}
	wantRestored(t, leader)
}

// testRestore has the API server change to the present release, and changes it by back when etcd is restored. That is
// to end the managers.
func testRestore(
	t *testing.T, cp *controlplane.ControlPlane, backup string, back func(*controlplane.Server),
	managers ...*managerProcess,
) {
	t.Helper()
	api := cp.Servers()[0]
	if err := api.Restart(func(s *controlplane.Server) { s.EmulatedVersion = "" }); err != nil {
		t.Fatal(err)
	}
	awaitPolicies(t, cp, "v1")
	if err := api.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := cp.Etcd().Restore(backup); err != nil {
		t.Fatal(err)
	}
	if err := api.Restart(back); err != nil {
		t.Fatal(err)
	}
	for _, p := range managers {
		wantRestored(t, p)
	}
}

// wantRestored wants the manager to end, and to say that etcd was restored.
func wantRestored(t *testing.T, p *managerProcess) {
	t.Helper()
	err := waitEnd(t, p)
	if log := p.Log(); err == nil || !strings.Contains(log, "etcd was restored from a backup") {
		t.Errorf("the manager ended with %v, and does not say why:\n%s", err, log)
	}
}

// awaitPolicies waits until the state of policies says that they are written in a version. It must always list v1beta1,
// which they were written in at first.
func awaitPolicies(t *testing.T, cp *controlplane.ControlPlane, version string) {
	t.Helper()
	const group = "admissionregistration.k8s.io"
	states := dynamicClient(t, cp).Resource(v1alpha1.SchemeGroupVersion.WithResource("storagestates"))
	var status map[string]any
	eventually(t, soon, version+" is recorded", func() bool {
		state, err := states.Get(t.Context(), "mutatingadmissionpolicies."+group, metav1.GetOptions{})
		if err != nil {
			return false
		}
		status, _ = state.Object["status"].(map[string]any)
		return status["currentEncodingVersion"] == group+"/"+version
	})
	persisted, _, err := unstructured.NestedStringSlice(status, "persistedEncodingVersions")
	if err != nil || !slices.Contains(persisted, group+"/v1beta1") {
		t.Errorf("objects are stored in v1beta1, and the state lists %q (%v)", persisted, err)
	}
}
