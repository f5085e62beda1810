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

// TestRestoredEtcd puts back an earlier state of etcd under a manager that leads and one that stands by. Both hold a
// lease that survives the outage, so nothing else ends them.
func TestRestoredEtcd(t *testing.T) {
	old := func(s *controlplane.Server) { s.EmulatedVersion = "1.36" }
	t.Run("with the release of the API server", func(t *testing.T) { testRestoredEtcd(t, old, old, "v1beta1") })
	t.Run("alone", func(t *testing.T) { testRestoredEtcd(t, old, nil, "v1") })
}

// testRestoredEtcd has the API server change to the present release, and changes it by back when etcd is restored. Then
// it writes a version.
func testRestoredEtcd(t *testing.T, old, back func(*controlplane.Server), version string) {
	t.Parallel()
	server := controlplane.Server{AllowAll: true, RuntimeConfig: []string{"api/all=true"}}
	old(&server)
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{server}})
	ours, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, cp, ours...)
	patient := []string{
		"--controllers=svmtrigger", "--leader-elect-lease-duration=20m", "--leader-elect-renew-deadline=15m",
		"--settle-period=2s",
	}
	managers := []*managerProcess{
		startManager(t, cp, framework.Manager, "first", patient...),
		startManager(t, cp, framework.Manager, "second", patient...),
	}
	const policies = "mutatingadmissionpolicies.admissionregistration.k8s.io"
	states := dynamicClient(t, cp).Resource(v1alpha1.SchemeGroupVersion.WithResource("storagestates"))
	writes := func(version string) func() bool {
		return func() bool {
			state, err := states.Get(t.Context(), policies, metav1.GetOptions{})
			if err != nil {
				return false
			}
			status, _ := state.Object["status"].(map[string]any)
			return status["currentEncodingVersion"] == "admissionregistration.k8s.io/"+version
		}
	}
	eventually(t, soon, "the old encoding is recorded", writes("v1beta1"))

	backup := filepath.Join(t.TempDir(), "etcd")
	if err := cp.Etcd().Save(backup); err != nil {
		t.Fatal(err)
	}
	api := cp.Servers()[0]
	if err := api.Restart(func(s *controlplane.Server) { s.EmulatedVersion = "" }); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the new encoding is recorded", writes("v1"))

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
		select {
		case <-p.Done():
		case <-time.After(soon):
			t.Fatal("the manager goes on although etcd was restored")
		}
		if log := p.Log(); p.Wait() == nil || !strings.Contains(log, "etcd was restored from a backup") {
			t.Errorf("the manager ended with %v, and does not say why:\n%s", p.Wait(), log)
		}
	}
	startManager(t, cp, framework.Manager, "again", "--controllers=svmtrigger", "--leader-elect=false")
	eventually(t, soon, "what is written now is recorded", writes(version))
	state, err := states.Get(t.Context(), policies, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	persisted, _, err := unstructured.NestedStringSlice(state.Object, "status", "persistedEncodingVersions")
	if err != nil || !slices.Contains(persisted, "admissionregistration.k8s.io/v1beta1") {
		t.Errorf("objects are stored in v1beta1, and the state lists %q (%v)", persisted, err)
	}
}
