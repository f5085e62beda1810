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

package svmtrigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// oldServer writes policies and bindings as v1beta1; without the emulation it writes them as v1.
func oldServer() controlplane.Server {
	return controlplane.Server{
		EmulatedVersion: "1.36", RuntimeConfig: []string{"admissionregistration.k8s.io/v1beta1=true"},
	}
}

func upgrade(s *controlplane.Server)   { s.EmulatedVersion = "" }
func downgrade(s *controlplane.Server) { s.EmulatedVersion = "1.36" }

// longEnoughToBeMet is how long a server lives whose documents count as those of that very process.
const longEnoughToBeMet = 12 * time.Second

func testUpgradeSeenInStorageVersions(t *testing.T) {
	c, started := testUpgrade(t, 2, controlplane.StorageVersionAPI(oldServer()), v1alpha1.EvidenceFromStorageVersion)
	t.Run("a crash", func(t *testing.T) {
		testCrash(t, c, started, func(crashed *controlplane.APIServer) { c.restart(t, crashed, nil) })
	})
}

func testUpgradeSeenInDiscovery(t *testing.T) {
	c, started := testUpgrade(t, 3, oldServer(), v1alpha1.EvidenceFromServerDiscovery)
	t.Run("another server in place of one that crashed", func(t *testing.T) {
		testCrash(t, c, started, func(crashed *controlplane.APIServer) { c.replace(t, crashed) })
	})
}

// testUpgrade takes servers through an upgrade that is taken back, and one that is not. It returns when the
// manager started.
func testUpgrade(
	t *testing.T, servers int, spec controlplane.Server, source v1alpha1.EvidenceSource,
) (c *cluster, started time.Time) {
	c = startCluster(t, slices.Repeat([]controlplane.Server{spec}, servers)...)
	startJudge(t, c, policies, bindings, configMaps, flowSchema)
	startMigrator(t, c)
	c.startManager(t, "manager", onlyChosen)
	started = time.Now()
	w := startWriter(t, c.Servers()...)

	framework.EventuallySeen(t, soon, func() error { return c.everythingKnown() })
	for _, r := range []resource{policies, bindings} {
		if err := c.migrated(r, "v1beta1"); err != nil {
			t.Fatal(err)
		}
		if got := c.state(r.String()).Status.Evidence.Source; got != source {
			t.Errorf("%s is known from %s, want %s", r, got, source)
		}
	}
	t.Run("an upgrade that is taken back", func(t *testing.T) { testRollback(t, c, w) })
	t.Run("an upgrade", func(t *testing.T) { testRoll(t, c, w) })
	w.stop()
	return c, started
}

// testRollback upgrades the last of the servers, lets it write, and takes it back.
func testRollback(t *testing.T, c *cluster, w *writer) {
	began := c.mark(t)
	server := c.Servers()[len(c.Servers())-1]
	c.restart(t, server, upgrade)
	w.through(server)
	framework.EventuallySeen(t, soon, func() error { return c.disagree(began) })
	// What a server wrote that left at once counts as not known.
	framework.During(t, longEnoughToBeMet, func(context.Context) error { return c.disagree(began) })
	w.through(c.Servers()...)
	c.restart(t, server, downgrade)
	framework.EventuallySeen(t, soon, func() error { return c.upgraded("v1beta1") })
	for _, r := range []resource{policies, bindings} {
		if err := c.migrationCount(r, began, 1); err != nil && !c.mayDoubt(t) {
			t.Error(err)
		}
		if stored, err := c.storedVersions(t, r); err != nil ||
			!slices.Equal(stored, []string{"admissionregistration.k8s.io/v1beta1"}) {
			t.Errorf("%s is stored as %v (%v)", r, stored, err)
		}
	}
	c.othersUntouched(t, began)
}

// testRoll upgrades all servers, one after the other, while others write through those that are still old.
func testRoll(t *testing.T, c *cluster, w *writer) {
	began := c.mark(t)
	servers := c.Servers()
	for i, server := range servers[:len(servers)-1] {
		w.through(servers[i+1:]...)
		c.restart(t, server, upgrade)
		framework.EventuallySeen(t, soon, func() error { return c.disagree(began) })
		framework.During(t, settle/2, func(context.Context) error { return c.noMigrationsOf(began, policies, bindings) })
	}
	if err := c.noMigrationsOf(began, policies, bindings); err != nil {
		t.Fatal(err)
	}
	for _, r := range []resource{policies, bindings} {
		if state := c.state(r.String()); !covers(state, r.hash("v1")) || !covers(state, r.hash("v1beta1")) {
			t.Errorf("in the middle of the upgrade %s does not list both encodings", words(state))
		}
	}
	t.Logf("in the middle of the upgrade: %s", words(c.state(policies.String())))
	w.through(servers...)
	c.restart(t, servers[len(servers)-1], upgrade)
	agreed := time.Now()
	framework.EventuallySeen(t, soon, func() error { return c.upgraded("v1") })
	t.Logf("migrated %v after the last server was ready", time.Since(agreed).Round(time.Millisecond))
	for _, r := range []resource{policies, bindings} {
		if err := c.migrationCount(r, began, 1); err != nil && !c.mayDoubt(t) {
			t.Error(err)
		}
		if stored, err := c.storedVersions(t, r); err != nil ||
			!slices.Equal(stored, []string{"admissionregistration.k8s.io/v1"}) {
			t.Errorf("%s is stored as %v (%v)", r, stored, err)
		}
	}
	c.othersUntouched(t, began)
}

// slowRestart is more than a restart may take if nothing is to be doubted: the controller waits a minute for what a
// server writes that has come, and a server comes some time before it is ready.
const slowRestart = 30 * time.Second

func (c *cluster) restart(t *testing.T, server *controlplane.APIServer, change func(*controlplane.Server)) {
	t.Helper()
	before, err := c.holder(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := server.Restart(change); err != nil {
		t.Fatal(err)
	}
	c.awaitHolder(t, server, before)
	c.slowest = max(c.slowest, time.Since(began))
}

// holder names the process that holds the identity Lease of a server. It is empty if there is no Lease.
func (c *cluster) holder(ctx context.Context, server *controlplane.APIServer) (string, error) {
	lease, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, server.Identity(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitHolder waits until another process holds the Lease of a server. A server may be ready long before it does.
func (c *cluster) awaitHolder(t *testing.T, server *controlplane.APIServer, before string) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		now, err := c.holder(ctx, server)
		if err == nil && (now == "" || now == before) {
			err = fmt.Errorf("%q still holds the Lease of %s", now, server.Address())
		}
		return err
	})
}

// mayDoubt tells whether a server took so long to restart that the controller was right to doubt what it writes.
func (c *cluster) mayDoubt(t *testing.T) bool {
	t.Helper()
	if c.slowest > slowRestart {
		t.Logf("a restart took %v, so that states may have been doubted", c.slowest.Round(time.Second))
	}
	return c.slowest > slowRestart
}

// disagree complains unless the states say that the servers disagree, and was so since a revision.
func (c *cluster) disagree(since int64) error {
	for _, r := range []resource{policies, bindings} {
		if err := c.writes(r, v1alpha1.Unknown); err != nil {
			return err
		}
		if err := c.says(r, v1alpha1.StorageStateAgreed, metav1.ConditionFalse,
			v1alpha1.StateReasonServersDisagree); err != nil {
			return err
		}
	}
	return c.noMigrationsOf(since, policies, bindings)
}

// noMigrationsOf complains if a migration of the resources was created after a revision.
func (c *cluster) noMigrationsOf(after int64, resources ...resource) error {
	for _, r := range resources {
		if err := c.migrationCount(r, after, 0); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) upgraded(version string) error {
	for _, r := range []resource{policies, bindings} {
		if err := c.migrated(r, version); err != nil {
			return err
		}
	}
	return nil
}

// chosen are the resources that are migrated where there are several servers. All others are only observed: each
// doubt begins an epoch, whether a resource is chosen or not.
var chosen = []resource{policies, bindings, configMaps, flowSchema}

var onlyChosen = fmt.Sprintf("--auto-migrate=%s,%s,%s,%s", policies, bindings, configMaps, flowSchema)

// everythingKnown complains unless there are states, all of them say that the servers agree, and the chosen resources
// are migrated.
func (c *cluster) everythingKnown() error {
	states := c.allStates()
	const fewest = 50
	if len(states) < fewest {
		return fmt.Errorf("there are only %d states", len(states))
	}
	var errs []error
	for name := range states {
		r := resource{GroupResource: schema.ParseGroupResource(name)}
		errs = append(errs, c.says(r, v1alpha1.StorageStateAgreed, metav1.ConditionTrue))
	}
	for _, r := range chosen {
		errs = append(errs, c.allMigrated([]schema.GroupResource{r.GroupResource}))
	}
	return errors.Join(errs...)
}

// othersUntouched wants that no other resource is migrated, or was ever doubted.
func (c *cluster) othersUntouched(t *testing.T, since int64) {
	t.Helper()
	changed := []string{policies.String(), bindings.String()}
	var touched []string
	for name := range c.allStates() {
		writes := c.stateWrites(name, 0)
		// One that only new servers serve has a state that is new.
		if slices.Contains(changed, name) || writes[0].revision > since {
			continue
		}
		first, last := c.stateAt(name, since), writes[len(writes)-1].state
		if first != nil && meta.IsStatusConditionFalse(first.Status.Conditions, v1alpha1.StorageStateServed) {
			continue // New servers, which had left again, are the only ones to serve it.
		}
		migrations := c.migrationsOf(schema.ParseGroupResource(name), since)
		if len(migrations) > 0 || first != nil && first.Status.Epoch != last.Status.Epoch {
			touched = append(touched, name)
		}
	}
	if len(touched) > 0 && !c.mayDoubt(t) {
		slices.Sort(touched)
		t.Errorf("nothing changed for %d resources, which were doubted or migrated again: %v\n%s", len(touched), touched,
			c.lifeOf(touched[0], since))
	}
}

// writer changes policies and bindings all the time, through some of the servers.
type writer struct {
	mu      sync.Mutex
	clients []kubernetes.Interface
	byName  map[string]kubernetes.Interface
	cancel  context.CancelFunc
	running sync.WaitGroup
}

const (
	writerInterval = 2 * time.Second
	writerTimeout  = 2 * time.Second
)

// startWriter writes through all servers in turn.
func startWriter(t *testing.T, servers ...*controlplane.APIServer) *writer {
	t.Helper()
	w := &writer{byName: map[string]kubernetes.Interface{}}
	for _, server := range servers {
		client, err := kubernetes.NewForConfig(server.Config("writer", framework.Masters))
		if err != nil {
			t.Fatal(err)
		}
		w.byName[server.Name()] = client
	}
	w.through(servers...)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.running.Go(func() {
		for turn := 0; ctx.Err() == nil; turn++ {
			w.write(ctx, turn)
			pause(ctx, writerInterval)
		}
	})
	t.Cleanup(w.stop)
	return w
}

// through is which servers it writes through from now on.
func (w *writer) through(servers ...*controlplane.APIServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clients = nil
	for _, server := range servers {
		w.clients = append(w.clients, w.byName[server.Name()])
	}
}

func (w *writer) stop() {
	w.cancel()
	w.running.Wait()
}

// write creates or changes one of three policies, and its binding. A server that is down refuses, which is as well.
func (w *writer) write(ctx context.Context, turn int) {
	w.mu.Lock()
	client := w.clients[turn%len(w.clients)]
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, writerTimeout)
	defer cancel()
	const objects = 3
	name := fmt.Sprintf("policy-%d", turn%objects)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"turn":"%d"}}}`, turn)
	api := client.AdmissionregistrationV1()
	if _, err := api.MutatingAdmissionPolicies().Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		absent := schema.GroupVersionResource{Group: "absent.example.com", Version: "v1", Resource: name}
		_, _ = api.MutatingAdmissionPolicies().Create(ctx, samples.Policy(name, absent), metav1.CreateOptions{})
	}
	if _, err := api.MutatingAdmissionPolicyBindings().Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
		}
		_, _ = api.MutatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	}
}
