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
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testWithoutCache has a server that lists from etcd. So continue tokens expire at once, and not when the cache of the
// server looks at it; and a list takes as long as its conversion.
func testWithoutCache(t *testing.T) {
	c := startCluster(t, controlplane.Server{ExtraArgs: []string{"--watch-cache=false"}})
	c.inTurn(t, part{"ExpiredToken", testExpiredToken}, part{"SlowList", testSlowList})
}

// testExpiredToken takes away the state of etcd that a migration lists, as the servers do every few minutes.
func testExpiredToken(t *testing.T, c *cluster) {
	const (
		objects   = 100
		chunkSize = 10 // so that there are tokens for most of the time
	)
	chunks := fmt.Sprintf("--migration-chunk-size=%d", chunkSize)
	slowly := steadily(3, chunks) // so that it does not end before its token expires
	manager := c.startManager(t, "manager", slowly...)

	first := c.stage(t, "letters", "Letter", objects)
	first.migrate(t)
	first.writes.reach(t, objects/4, soon)
	c.expireTokens(t, manager, first.custom)
	m, _ := first.succeeded(t, soon, 1)
	// The answers to those that were on their way when the manager was paused may have come too late.
	if patches := first.patches(t, time.Time{}); patches < objects || patches > objects+onTheirWay {
		t.Errorf("%d objects got %d PATCH requests: %s", objects, patches, words(m))
	}
	if told := strings.Count(manager.Log(), "The continue token expired"); told == 0 {
		t.Error("the manager met no expired token")
	}

	framework.StopManager(t, manager)
	testExpiredWhileCleaning(t, c)
	manager = c.startManager(t, "second", slowly...)

	// The token that was saved is one of those that expire.
	second := c.stage(t, "parcels", "Parcel", objects)
	second.migrate(t)
	second.writes.reach(t, objects/4, soon)
	if err := manager.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.ExpireContinueTokens(t.Context(), second.WithVersion("v2")); err != nil {
		t.Fatal(err)
	}
	heir := c.startManager(t, "heir", chunks)
	m, _ = second.succeeded(t, soon, 1)
	if patches := second.patches(t, time.Time{}); patches > objects+chunkSize {
		t.Errorf("%d objects got %d PATCH requests, with one chunk done again: %s", objects, patches, words(m))
	}
	if told := strings.Count(heir.Log(), "The continue token expired"); told == 0 {
		t.Error("the manager met no expired token after it was started again")
	}
}

// expireTokens takes away what the manager lists while it is paused, so that it cannot be done before that.
func (c *cluster) expireTokens(t *testing.T, manager *controlplane.Process, r custom) {
	t.Helper()
	framework.WhilePaused(t, manager, func() {
		if err := c.ExpireContinueTokens(t.Context(), r.WithVersion("v2")); err != nil {
			t.Fatal(err)
		}
	})
}

// testExpiredWhileCleaning expires the tokens of a migration that drops entries of managedFields. Somebody writes the
// last object meanwhile: it is newer than the beginning of the migration, and the API server keeps its old entry. And
// somebody serves one more version, and applies a new object at it, which has to keep its entry.
func testExpiredWhileCleaning(t *testing.T, c *cluster) {
	const objects = 120
	stamps := c.stage(t, "stamps", "Stamp", objects)
	plain := c.startManager(t, "plain", "--migration-chunk-size=20")
	stamps.migrate(t)
	stamps.succeeded(t, soon, 1)
	framework.StopManager(t, plain)
	c.ChangeDefinition(t, stamps.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions = d.Spec.Versions[1:]
	})

	cleaning := c.startManager(t, "cleaning", steadily(5, "--migration-chunk-size=20",
		"--feature-gates=CRDManagedFieldsCleaning=true")...)
	before := stamps.writes.count()
	c.migrate(t, "cleaning", stamps.WithVersion(""))
	stamps.writes.reach(t, before+objects/4, soon) // The first chunk is stored, and with it the token that expires.
	const added = "object-added"
	last, label := fmt.Sprintf("object-%05d", objects-1), []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	framework.WhilePaused(t, cleaning, func() { // so that it cannot be done before its token expires
		c.ChangeDefinition(t, stamps.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
			v3 := d.Spec.Versions[0].DeepCopy()
			v3.Name, v3.Storage = "v3", false
			d.Spec.Versions = append(d.Spec.Versions, *v3)
		})
		framework.Eventually(t, soon, func(ctx context.Context) error {
			return c.apply(ctx, stamps.custom, "v3", added, "late")
		})
		_, err := c.at(stamps.custom, "v2").Patch(t.Context(), last, types.MergePatchType, label, metav1.PatchOptions{})
		if err == nil {
			err = c.ExpireContinueTokens(t.Context(), stamps.WithVersion("v2"))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	mustSucceed(t, c.ended(t, "cleaning", soon))
	if !strings.Contains(cleaning.Log(), "The continue token expired") {
		t.Error("the manager met no expired token while it cleaned")
	}
	framework.StopManager(t, cleaning)
	for name, want := range map[string]string{last: "v2", added: "v3"} {
		for _, entry := range c.thing(t, stamps.custom, name).GetManagedFields() {
			if entry.APIVersion != stamps.encoding(want) {
				t.Errorf("%s has an entry of %s in %s", name, entry.Manager, entry.APIVersion)
			}
		}
	}
}
