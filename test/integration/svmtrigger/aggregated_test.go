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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

var (
	flunders = aggregated("flunders", "Flunder")
	fischers = aggregated("fischers", "Fischer")
)

func aggregated(plural, kind string) resource {
	return resource{schema.GroupResource{Group: controlplane.SampleGroup, Resource: plural}, kind,
		"/registry-sample/" + controlplane.SampleGroup + "/" + plural + "/"}
}

// testAggregatedServer has resources of an aggregated server, whose discovery fails later.
func testAggregatedServer(t *testing.T, c *cluster) {
	sample, err := c.StartSampleServer(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	flunder := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": controlplane.SampleGroup + "/v1alpha1", "kind": flunders.kind,
		"metadata": map[string]any{"name": "one"},
	}}
	client := c.Dynamic.Resource(flunders.WithVersion("v1alpha1")).Namespace(metav1.NamespaceDefault)
	framework.Create(t, soon, client, flunder) // The aggregator may not reach the server at once.
	startJudge(t, c, flunders)
	startMigrator(t, c)
	const poll = 10 * time.Second
	manager := c.startManager(t, "manager",
		"--poll-interval="+poll.String(), "--auto-migrate=*."+controlplane.SampleGroup)

	for _, r := range []resource{flunders, fischers} {
		framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1alpha1") })
		// If polls come late, as on a busy machine, the controller begins a further epoch, which needs a migration too.
		made := c.migrationsOf(r.GroupResource, 0)
		if epochs := c.state(r.String()).Status.Epoch; len(made) == 0 || int64(len(made)) > epochs {
			t.Errorf("there were %d migrations of %s in %d epochs: %v", len(made), r, epochs, made)
		}
		if source := c.state(r.String()).Status.Evidence.Source; source != v1alpha1.EvidenceFromAggregatedDiscovery {
			t.Errorf("%s is known from %s", r, source)
		}
	}

	old := c.allStates()
	c.failDiscovery(t, sample)
	before, began := c.allStates(), c.mark(t)
	t.Logf("while discovery fails: %s", words(c.state(flunders.String())))
	framework.During(t, poll+settle, func(context.Context) error { return c.nothingDoubted(before, began) })
	if err := c.says(flunders, v1alpha1.StorageStateServed, metav1.ConditionFalse); err == nil {
		t.Error("a resource that cannot be discovered counts as one that is not served")
	}
	if sample, err = c.StartSampleServer(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	framework.EventuallySeen(t, soon, func() error {
		return c.says(flunders, v1alpha1.StorageStateAgreed, metav1.ConditionTrue, v1alpha1.StateReasonServersAgree)
	})
	for _, r := range []resource{flunders, fischers} {
		if state := c.state(r.String()); state.UID != old[r.String()].UID {
			t.Errorf("the state of %s was made anew", r)
		}
	}
	if got := fmt.Sprint(c.migrationsAfter(began)); got != "[]" {
		t.Logf("after the gap, in which the aggregated server was a new process: %s", got)
	}

	framework.StopManager(t, manager)
	t.Run("APIServices that move while nobody watches", func(t *testing.T) { testServiceMoves(t, c, sample) })
}

// failDiscovery stops the aggregated server, and waits until the states say that its discovery fails. That alone is no
// reason to doubt them. A poll that came late before may be one, and from then on no poll succeeds.
func (c *cluster) failDiscovery(t *testing.T, sample *controlplane.Process) {
	t.Helper()
	began := c.mark(t)
	if err := sample.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []resource{flunders, fischers} {
		framework.EventuallySeen(t, soon, func() error {
			return c.says(r, v1alpha1.StorageStateAgreed, metav1.ConditionFalse, v1alpha1.StateReasonDiscoveryFailed)
		})
		last := c.stateAt(r.String(), began)
		for _, write := range c.stateWrites(r.String(), began) {
			if write.state == nil {
				t.Fatalf("the state of %s was deleted", r)
			}
			agreed := meta.FindStatusCondition(write.state.Status.Conditions, v1alpha1.StorageStateAgreed)
			failed := agreed != nil && agreed.Reason == v1alpha1.StateReasonDiscoveryFailed
			if failed && doubted(last, write.state) {
				t.Errorf("when discovery failed\n%s\nchanged to %s", words(last), words(write.state))
			}
			last = write.state
		}
	}
}

// testServiceMoves has the APIServices lead to another port before the next manager starts. That may be another server
// with another storage, so anything may be stored.
func testServiceMoves(t *testing.T, c *cluster, sample *controlplane.Process) {
	before, began := c.state(flunders.String()).Status.Epoch, c.mark(t)
	if err := sample.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartSampleServer(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	// The absence of a manager is too short to matter at that interval. What the migration proves counts only after the
	// next poll, which never comes here.
	c.startManager(t, "manager-after-the-move", "--poll-interval=1h", "--auto-migrate=*."+controlplane.SampleGroup)
	framework.EventuallySeen(t, soon, func() error {
		if epoch := c.state(flunders.String()).Status.Epoch; epoch == before {
			return fmt.Errorf("the epoch is still %d", epoch)
		}
		if certain(c.state(flunders.String())) {
			return errors.New("the state excludes encodings")
		}
		return c.migrationCount(flunders, began, 1)
	})
}
