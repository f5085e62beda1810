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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// longEnoughToTell is more than what the controller takes for a moment that passes by itself.
const longEnoughToTell = 65 * time.Second

// managerKnowsWhoLeft is longer than the address of a server may answer after its Lease is gone. A manager that has run
// for less may have taken such an address for that of a server that lives, so it doubts when one is missing.
const managerKnowsWhoLeft = 100 * time.Second

// testCrash kills a server, whose identity Lease stays, and has a server come. Nobody knows whether the first one only
// is out of reach, but what it wrote in was seen.
func testCrash(t *testing.T, c *cluster, managerStarted time.Time, come func(crashed *controlplane.APIServer)) {
	time.Sleep(time.Until(managerStarted.Add(managerKnowsWhoLeft)))
	crashed := c.Servers()[len(c.Servers())-1]
	// A server may be ready long before it has a Lease, and nobody reads it before that.
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.everyStateKnows(ctx, crashed) })
	before := c.allStates()
	began := c.mark(t)
	if err := crashed.Kill(); err != nil {
		t.Fatal(err)
	}
	// Its address goes when the record of it expires, its Lease does not.
	framework.Eventually(t, soon, func(ctx context.Context) error {
		slice, err := c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil && len(slice.Endpoints) == len(c.Servers()) {
			err = errors.New("the address of the server that was killed is still there")
		}
		return err
	})
	if _, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), crashed.Identity(),
		metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	unchanged := func(context.Context) error { return c.nothingDoubted(before, began) }
	framework.During(t, longEnoughToTell, unchanged)
	t.Logf("while a server is dead and its Lease is not: %s", words(c.state(flowSchema.String())))

	came := time.Now()
	come(crashed)
	newest := c.Servers()[len(c.Servers())-1]
	// Until the new process was read, the states say what they said before.
	framework.Eventually(t, soon, func(ctx context.Context) error {
		holder, err := c.holder(ctx, newest)
		if state := c.state(flowSchema.String()); err == nil && !names(state.Status.Evidence, holder) {
			err = fmt.Errorf("%s does not know %s", words(state), holder)
		}
		return err
	})
	c.slowest = max(c.slowest, time.Since(came))
	framework.EventuallySeen(t, soon, func() error {
		return c.says(flowSchema, v1alpha1.StorageStateAgreed, metav1.ConditionTrue, v1alpha1.StateReasonServersAgree)
	})
	t.Logf("the servers agree %v after one was told to come", time.Since(came).Round(time.Second))
	if !c.mayDoubt(t) {
		framework.During(t, 2*settle, unchanged)
	}
}

// replace starts a server at another address in place of one that crashed, whose Lease stays.
func (c *cluster) replace(t *testing.T, crashed *controlplane.APIServer) {
	t.Helper()
	added, err := c.AddServer(t.Context(), controlplane.Server{
		AllowAll: true, RuntimeConfig: oldServer().RuntimeConfig,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.awaitHolder(t, added, "")
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.everyStateKnows(ctx, added) })
	if _, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), crashed.Identity(),
		metav1.GetOptions{}); err != nil {
		t.Errorf("the Lease of the server that crashed: %v", err)
	}
}

// everyStateKnows complains unless the evidence of every built-in resource names the process of the server that runs.
func (c *cluster) everyStateKnows(ctx context.Context, server *controlplane.APIServer) error {
	holder, err := c.holder(ctx, server)
	if err != nil {
		return err
	}
	for name, state := range c.allStates() {
		evidence := state.Status.Evidence
		if evidence == nil || evidence.Source != v1alpha1.EvidenceFromServerDiscovery {
			continue
		}
		if !names(evidence, holder) {
			return fmt.Errorf("the state of %s does not know %s", name, holder)
		}
	}
	return nil
}

// names tells whether an evidence names the process of that incarnation.
func names(evidence *v1alpha1.StorageEvidence, incarnation string) bool {
	return slices.ContainsFunc(evidence.Servers, func(known v1alpha1.ServerEvidence) bool {
		return known.Incarnation == incarnation
	})
}

// nothingDoubted complains if a state lists, or takes for current, another encoding than before, or counts another
// epoch, or if a migration of one of these resources was created after a revision.
func (c *cluster) nothingDoubted(before map[string]*v1alpha1.StorageState, since int64) error {
	for name, old := range before {
		now := c.state(name)
		if now == nil {
			return fmt.Errorf("the state of %s is gone", name)
		}
		if doubted(old, now) {
			return fmt.Errorf("%s\nchanged to %s", words(old), words(now))
		}
	}
	for _, life := range c.migrationsAfter(since) {
		if _, known := before[resourceOf(life.last()).String()]; !known {
			continue // A resource that is served for the first time.
		}
		return fmt.Errorf("a migration was created at %s: %v", life.seen.Format(time.TimeOnly), life)
	}
	return nil
}

// doubted tells whether a state lists, or takes for current, another encoding than before, or counts another epoch.
func doubted(old, now *v1alpha1.StorageState) bool {
	return fmt.Sprint(persisted(old)) != fmt.Sprint(persisted(now)) || old.Status.Epoch != now.Status.Epoch ||
		old.Status.CurrentStorageVersionHash != now.Status.CurrentStorageVersionHash
}
