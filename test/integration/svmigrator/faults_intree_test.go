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
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// inTreeLook is more than the migrator needs to look at in-tree migrations again.
const inTreeLook = 12 * time.Second

// testInTreeMigrator has kube-controller-manager migrate a resource whose storage version changes meanwhile. The
// migration that the trigger creates waits for the end of that one, and writes no object twice.
func testInTreeMigrator(t *testing.T, c *cluster) {
	const (
		objects = 60
		first   = "twin-00000"
	)
	hook := webhook.Start(t, c.ListenAddress()).Validation()
	r := newCustom("twins", "Twin")
	c.define(t, r)
	c.fill(t, r, "twin", objects)
	hook.Behave(webhook.Behaviour{Refuse: map[string]string{first: opposed}})
	c.ask(t, hook, r)
	c.awaitDenial(t, r, first, opposed)
	c.flip(t, r, "v2")
	hook.Behave(webhook.Behaviour{Hang: true}) // The in-tree migration cannot end before it is paused.
	inTree := c.startInTreeMigrator(t)
	c.migrateInTree(t, "in-tree", r)
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.inTreeRuns(ctx, "in-tree") })
	if err := inTree.Pause(); err != nil {
		t.Fatal(err)
	}
	hook.Behave(webhook.Behaviour{})
	if err := c.inTreeRuns(t.Context(), "in-tree"); err != nil {
		t.Fatal(err)
	}
	judge := c.judge(t, r.GroupResource)
	began := time.Now()
	c.startManager(t, "manager", "--controllers=*", "--auto-migrate="+r.String())
	framework.Eventually(t, soon, func(ctx context.Context) error {
		state, err := c.States().Get(ctx, r.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		migrated := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateMigrated)
		if migrated == nil || !strings.Contains(migrated.Message, `migration "in-tree" of kube-controller-manager`) {
			return fmt.Errorf("the state does not name the migration: %+v", migrated)
		}
		t.Logf("the state says: %s", migrated.Message)
		return nil
	})
	framework.During(t, inTreeLook, func(context.Context) error {
		counts, err := c.Requests(patchesOfManager(r.GroupResource, began))
		if err == nil && counts.Total() > 0 {
			err = fmt.Errorf("%d objects were rewritten while the in-tree migration runs", counts.Total())
		}
		return err
	})
	if err := inTree.Resume(); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.safe(ctx, r, "v2") })
	judge.stored(t, r.encoding("v2"))
	judge.onlyEncodings(t, 1)
}

// brokenInTree is a migration of kube-controller-manager that no API server can read.
const brokenInTree = "/registry/storageversionmigrations/broken"

// testStorageMigrating has a definition that says that kube-controller-manager migrates its resource. Nobody can tell
// which migrations kube-controller-manager has, because one of them cannot be read. At first each run fails.
func testStorageMigrating(t *testing.T, c *cluster) {
	const objects = 20
	s := c.stage(t, "claims", "Claim", objects)
	c.setStorageMigrating(t, s.custom, apiextensionsv1.ConditionTrue)
	if _, err := c.Etcd().Client().Put(t.Context(), brokenInTree, "\xd9\xd9\xf7\xa1"); err != nil {
		t.Fatal(err)
	}
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	refuses := &withoutDocument{group: s.Group}
	gate.Intercept(refuses.judge)
	c.startProcess(t, framework.Process{Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters)})
	s.migrate(t)
	failing := c.reports(t, s.Resource, v1alpha1.MigrationWaiting, corev1.ConditionTrue, v1alpha1.MigrationReasonRetrying,
		soon)
	t.Logf("the API server does not show where the resource is served: %s", failing.Message)
	refuses.backOff(t)
	gate.Intercept(nil)
	waits := c.reports(t, s.Resource, v1alpha1.MigrationWaiting, corev1.ConditionTrue,
		v1alpha1.MigrationReasonAwaitingInTree, soon)
	t.Logf("the migration waits: %s", waits.Message)
	s.judge.stored(t, s.encoding("v2"))
	said := time.Now()
	during(t, inTreeLook, func(ctx context.Context) (complaint, failure error) {
		definition, err := c.Definitions().Get(ctx, s.String(), metav1.GetOptions{})
		if err == nil && !sameStrings(definition.Status.StoredVersions, "v1", "v2") {
			complaint = fmt.Errorf("status.storedVersions is %v already", definition.Status.StoredVersions)
		}
		return complaint, err
	})
	counts, err := c.Requests(controlplane.RequestFilter{
		Since: said, Users: []string{framework.ManagerUser}, Verbs: []string{"update"},
		Resources: []schema.GroupResource{v1alpha1.Resource("storageversionmigrations")},
	})
	if err != nil || counts.Total() > 0 {
		t.Errorf("the status was written although nothing changed: %v, %v", counts, err)
	}
	c.setStorageMigrating(t, s.custom, apiextensionsv1.ConditionFalse)
	s.succeeded(t, soon, 1)
	if _, err := c.Etcd().Client().Delete(t.Context(), brokenInTree); err != nil {
		t.Fatal(err)
	}
}

// withoutDocument refuses to say at which versions a group is served, as a server that is overloaded does.
type withoutDocument struct {
	group   string
	mu      sync.Mutex
	refused []time.Time
}

func (d *withoutDocument) judge(request *http.Request) controlplane.Verdict {
	if request.URL.Path != "/apis/"+d.group {
		return controlplane.Verdict{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = append(d.refused, time.Now())
	return controlplane.Verdict{Status: http.StatusServiceUnavailable}
}

// backOff wants that a run which fails again and again is tried ever more rarely: after 1, 2, 4 seconds. If a request
// fails for another reason, as on a busy machine, the delays may begin anew. So it is enough if they are long at some
// time.
func (d *withoutDocument) backOff(t *testing.T) {
	t.Helper()
	const (
		enough = 4
		// At intervals of less than two seconds there would always be more than most runs in this time.
		lately = 6 * time.Second
		most   = 2
	)
	framework.Eventually(t, soon, func(context.Context) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		late := 0
		for _, at := range d.refused {
			if time.Since(at) < lately {
				late++
			}
		}
		if len(d.refused) < enough || late > most {
			return fmt.Errorf("%d runs have failed, %d of them in the last %v", len(d.refused), late, lately)
		}
		return nil
	})
}

// setStorageMigrating sets the condition as kube-controller-manager does.
func (c *cluster) setStorageMigrating(t *testing.T, r custom, status apiextensionsv1.ConditionStatus) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		definition, err := c.Definitions().Get(ctx, r.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		apihelpers.SetCRDCondition(definition, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: apiextensionsv1.StorageMigrating, Status: status, Reason: "MigrationRunning",
		})
		_, err = c.Definitions().UpdateStatus(ctx, definition, metav1.UpdateOptions{})
		return err
	})
}

// startInTreeMigrator starts the migrator of kube-controller-manager, and the garbage collector that it waits for.
func (c *cluster) startInTreeMigrator(t *testing.T) *controlplane.Process {
	t.Helper()
	process, err := c.StartControllerManager(
		"--controllers=serviceaccount-token-controller,garbage-collector-controller,storage-version-migrator-controller")
	if err != nil {
		t.Fatal(err)
	}
	return process
}

func (c *cluster) migrateInTree(t *testing.T, name string, r custom) {
	t.Helper()
	m := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Spec.Resource = metav1.GroupResource(r.GroupResource)
	_, err := c.Kube.StoragemigrationV1().StorageVersionMigrations().Create(t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// inTreeRuns returns an error unless the in-tree migration runs. One that has ended may still be called Running.
func (c *cluster) inTreeRuns(ctx context.Context, name string) error {
	m, err := c.Kube.StoragemigrationV1().StorageVersionMigrations().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	is := func(condition v1alpha1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(condition))
	}
	ended := is(v1alpha1.MigrationSucceeded) || is(v1alpha1.MigrationFailed)
	if ended || !is(v1alpha1.MigrationRunning) {
		err = fmt.Errorf("the in-tree migration does not run: %+v", m.Status.Conditions)
	}
	return err
}
