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
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const managerLease = "svm-controller-manager"

// onlyLead has a manager migrate nothing.
func onlyLead(election []string) []string { return append(slices.Clip(election), "--auto-migrate=-*") }

func testLeadership(t *testing.T, cp *controlplane.ControlPlane) {
	c := client(t, cp.AdminConfig())

	t.Run("the standby takes over from a leader that was killed", func(t *testing.T) {
		first := startManager(t, cp, framework.Manager, "killed-leader", onlyLead(framework.QuickElection)...)
		eventually(t, soon, "the first leads and runs its controller", func() bool { return first.runs(t, cp, gcController) })
		before := holder(t.Context(), c, managerLease)
		second := startManager(t, cp, framework.Manager, "heir", onlyLead(framework.QuickElection)...)
		eventually(t, soon, "the second is up", func() bool { code, _ := second.get(t, nil, "/readyz"); return code == 200 })
		// On a busy machine the first may lose its lease, and end, before it is killed.
		if first.leads(t, cp) && (second.leads(t, cp) || second.runs(t, cp, gcController)) && first.leads(t, cp) {
			t.Fatal("two leaders")
		}
		if err := first.Kill(); err != nil && !errors.Is(err, controlplane.ErrNotRunning) {
			t.Fatal(err)
		}
		eventually(t, soon, "the second runs the controller", func() bool { return second.runs(t, cp, gcController) })
		if after := holder(t.Context(), c, managerLease); after == before || after == "" {
			t.Errorf("the lease is held by %q, before the kill by %q", after, before)
		}
		framework.StopManager(t, second.Process)
	})

	t.Run("a stop hands over at once", func(t *testing.T) {
		wrong := leadAndStop(t, cp, "stopped-leader")
		// A manager may log that a request was not answered in time. Another life shows whatever else is wrong again.
		if slices.ContainsFunc(wrong, notInTime.MatchString) {
			t.Logf("once more, because of:\n%s", strings.Join(wrong, "\n"))
			wrong = leadAndStop(t, cp, "stopped-leader-again")
		}
		if len(wrong) > 0 {
			t.Errorf("after a clean life:\n%s", strings.Join(wrong, "\n"))
		}
	})

	t.Run("a leader that only observes says nothing about the fence", func(t *testing.T) {
		leases := c.CoordinationV1().Leases(metav1.NamespaceSystem)
		// This is what a leader that migrates has left.
		left := []byte(`{"metadata":{"labels":{"` + fence.Label + `":"` + string(fence.Standing) + `"}}}`)
		if _, err := leases.Patch(t.Context(), managerLease, types.MergePatchType, left, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		observer := startManager(t, cp, framework.Manager, "observer", "--controllers="+gcController)
		eventually(t, soon, "it leads", func() bool { return observer.runs(t, cp, gcController) })
		if labels := lease(t.Context(), c, managerLease).Labels; labels[fence.Label] != "" {
			t.Errorf("the labels of the lease are %v", labels)
		}
		framework.StopManager(t, observer.Process)
	})

	t.Run("a stop while controllers are made is none of their errors", func(t *testing.T) {
		p := startManager(t, cp, pluginBinary, "stopped-early", "--controllers=unmade")
		eventually(t, soon, "a controller is being made", func() bool {
			return strings.Contains(p.Log(), "Making a controller")
		})
		framework.StopManager(t, p.Process)
	})

	t.Run("a leader whose controllers do not end keeps the lease", func(t *testing.T) {
		p := startManager(t, cp, pluginBinary, "stubborn-leader",
			"--controllers=stubborn", "--controller-shutdown-timeout=1s")
		eventually(t, soon, "it leads", func() bool { return p.runs(t, cp, "stubborn-controller") })
		held := holder(t.Context(), c, managerLease)
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err == nil {
			t.Error("the exit code says that all controllers have ended")
		}
		if want := `controllers did not end in time (1s): [\"stubborn-controller\"]`; !strings.Contains(p.Log(), want) {
			t.Errorf("the log does not say %s:\n%s", want, p.Log())
		}
		if now := holder(t.Context(), c, managerLease); now != held || now == "" {
			t.Errorf("the lease of %q is held by %q: the next leader starts while a controller runs", held, now)
		}
		leases := c.CoordinationV1().Leases(metav1.NamespaceSystem)
		if err := leases.Delete(t.Context(), managerLease, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}

var (
	errorLines = regexp.MustCompile(`(?m)^E\d{4} .*`)
	// notInTime is what errors say of requests that etcd or the API server, standing still, did not answer in time.
	notInTime = regexp.MustCompile(`etcdserver: |[Tt]imeout|timed out|deadline exceeded|connection lost`)
	// cutOff is what client-go says, as an error, of an answer that it was reading when the manager was stopped.
	cutOff = regexp.MustCompile(` request\.go:\d+] "Unexpected error when reading response body" err="context canceled"`)
)

// leadAndStop has a manager lead and stop, and returns the errors that it logs, and whether it keeps the lease.
func leadAndStop(t *testing.T, cp *controlplane.ControlPlane, name string) (wrong []string) {
	t.Helper()
	// A lease that is not given back stays for minutes.
	p := startManager(t, cp, framework.Manager, name, onlyLead(nil)...)
	eventually(t, soon, "it leads", func() bool { return p.runs(t, cp, gcController) })
	framework.StopManager(t, p.Process)
	wrong = slices.DeleteFunc(errorLines.FindAllString(p.Log(), -1), cutOff.MatchString)
	if h := holder(t.Context(), client(t, cp.AdminConfig()), managerLease); h != "" {
		wrong = append(wrong, "the lease is still held by "+h)
	}
	return wrong
}

// testNoWriteAfterTheLease attacks the promise that only one instance writes: the leader, whose controller writes all
// the time, is frozen until another leads, then wakes up. It does not know yet that its time is over.
func testNoWriteAfterTheLease(t *testing.T, cp *controlplane.ControlPlane) {
	configMaps := client(t, cp.AdminConfig()).CoreV1().ConfigMaps(metav1.NamespaceDefault)
	// The writers of other parts have written it too.
	err := configMaps.Delete(t.Context(), "written", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	args := append([]string{"--controllers=writer"}, framework.QuickElection...)

	frozen := startManager(t, cp, pluginBinary, "frozen", args...)
	writtenBy := func() string {
		m, err := configMaps.Get(t.Context(), "written", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return m.Data["by"]
	}
	eventually(t, soon, "the first writes", func() bool { return writtenBy() != "" })
	first := writtenBy()
	heir := startManager(t, cp, pluginBinary, "next", args...)
	eventually(t, soon, "the second is up", func() bool { code, _ := heir.get(t, nil, "/readyz"); return code == 200 })

	changes, err := configMaps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=written"})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	if err := frozen.Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the second writes", func() bool { by := writtenBy(); return by != "" && by != first })
	second := writtenBy()
	if err := frozen.Resume(); err != nil {
		t.Fatal(err)
	}
	// The second gives the lease back at once: the first must not take it again and go on with what it knew before.
	framework.StopManager(t, heir.Process)
	if err := waitEnd(t, frozen); err == nil {
		t.Error("a leader that lost its lease must end with an error")
	}
	if log := frozen.Log(); !strings.Contains(log, "lost the leader lease") {
		t.Errorf("the log does not say why the process ended:\n%s", log)
	}

	// Every write is in the watch: once the second has written, the first never does again.
	marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "written"}, Data: map[string]string{"by": "the end"}}
	if _, err := configMaps.Update(t.Context(), marker, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for event := range changes.ResultChan() {
		m, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			t.Fatalf("the watch broke: %v", event.Object)
		}
		by := m.Data["by"]
		if by == "the end" {
			break
		}
		if by == first && seen[second] > 0 {
			t.Fatalf("the first leader wrote after the second one had begun (%v)", seen)
		}
		seen[by]++
	}
	if seen[second] == 0 {
		t.Errorf("the watch shows no write of the second leader: %v", seen)
	}
}

// waitEnd waits for the process and returns how it ended.
func waitEnd(t *testing.T, p *managerProcess) error {
	t.Helper()
	select {
	case <-p.Done():
		return p.Wait()
	case <-time.After(soon):
		t.Fatalf("%s does not end", p.name)
		return nil
	}
}
