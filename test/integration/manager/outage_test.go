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
	"strings"
	"testing"

	"sigs.k8s.io/svm-api/migration/crds"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// TestStopDuringAnOutage wants a manager to end without complaint while its informers wait before they ask again. If
// the server ended their watches with an error, they list again, and client-go does not interrupt their wait.
func TestStopDuringAnOutage(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{{AllowAll: true}}})
	ours, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, cp, ours...)
	p := startManager(t, cp, framework.Manager, "stopped-in-an-outage", "--leader-elect=false",
		"--controllers=svmtrigger", "--auto-migrate=-*", "--controller-shutdown-timeout=1s", "-v=4")
	logs := func(line string) int { return strings.Count(p.Log(), line) }
	eventually(t, soon, "it has listed states", func() bool {
		return logs(`"Caches populated" type="*v1alpha1.StorageState"`) > 0
	})
	if err := cp.Servers()[0].Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "informers have waited several times", func() bool {
		return logs(" failed - backing off") >= 4
	})
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil || logs("did not end in time") > 0 {
		t.Errorf("the manager ended with %v:\n%s", err, p.Log())
	}
}
