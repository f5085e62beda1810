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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	stuckObjects = 120
	// passedBy is how long a migration may wait for places that others hold who get nowhere, until it has ended itself.
	passedBy = 6 * time.Minute
	// toldWithin is how soon a migration says what holds up its end.
	toldWithin = 3 * time.Minute
	// forbidding is what servers of these tests answer to what they refuse.
	forbidding = "nobody may do that today"
)

// testStuckMigrations has migrations that get nowhere in all slots that there are, and one that needs a slot. One of
// them cannot list, the other one cannot rewrite what it has listed.
func testStuckMigrations(t *testing.T) {
	c := startCluster(t)
	server := webhook.Start(t, c.ListenAddress())
	hook := server.Conversion(webhook.SameFields)
	unwritten, unlisted := c.stageConverted(t, "mirrors", "Mirror", hook), c.stageConverted(t, "echoes", "Echo", hook)
	healthy := c.stage(t, "walkers", "Walker", stuckObjects)
	c.startManager(t, "manager", steadily(8, "--concurrent-migrations=2", "--migration-chunk-size=50")...)

	unwritten.migrate(t)
	unwritten.writes.reach(t, 50, soon)
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	unlisted.migrate(t)
	unwritten.stuck(t, v1alpha1.MigrationReasonRetrying, "Rewriting ")
	unlisted.stuck(t, v1alpha1.MigrationReasonRetrying, "Listing")

	healthy.migrate(t)
	began := time.Now()
	healthy.succeeded(t, passedBy, 1)
	t.Logf("it passed those that were stuck and ended within %v", time.Since(began).Round(time.Millisecond))
	for _, s := range []*scene{unwritten, unlisted} {
		s.stuck(t, v1alpha1.MigrationReasonNoProgress)
	}

	if err := server.Reopen(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	for _, s := range []*scene{unwritten, unlisted} {
		s.succeeded(t, soon, 1)
		t.Logf("%s ended within %v of the end of the outage", s.Resource, time.Since(began).Round(time.Millisecond))
	}
}

// stageConverted is stage for a resource whose versions a webhook converts.
func (c *cluster) stageConverted(t *testing.T, plural, kind string, hook *webhook.Hook) *scene {
	t.Helper()
	r := newCustom(plural, kind)
	c.define(t, r, convertedBy(hook))
	c.fill(t, r, "object", stuckObjects)
	c.flip(t, r, "v2")
	return &scene{cluster: c, custom: r, n: stuckObjects, judge: c.judge(t, r.GroupResource), writes: c.watchWrites(t, r)}
}

// stuck wants the migration to have begun, and to say that it does not get on because of the webhook.
func (s *scene) stuck(t *testing.T, reason string, says ...string) {
	t.Helper()
	says = append(says, "conversion webhook for migration.test/", "connection refused")
	s.runningSays(t, s.Resource, reason, says...)
}

// testEndCannotBeWritten forbids what is left to do when all objects are done.
func testEndCannotBeWritten(t *testing.T, c *cluster) {
	unpruned, unread := c.stage(t, "epilogues", "Epilogue", 60), c.stage(t, "postscripts", "Postscript", 60)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	var pruned, read, rewritten atomic.Int32
	var allowed atomic.Bool
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		switch {
		case r.Method == http.MethodPatch && r.URL.Path == unpruned.definitionPath()+"/status":
			pruned.Add(1)
			return unpruned.forbidden()
		case r.Method == http.MethodPatch && unread.isAbout(r.URL.Path) && !r.URL.Query().Has("dryRun"):
			rewritten.Add(1)
		case r.Method == http.MethodGet && r.URL.Path == unread.definitionPath() && !allowed.Load():
			if int(rewritten.Load()) >= unread.n { // The migration reads it at its start too, and may.
				read.Add(1)
				return unread.forbidden()
			}
		}
		return controlplane.Verdict{}
	})
	c.startProcess(t, framework.Process{
		Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters), Args: steadily(100),
	})

	t.Run("stored versions cannot be pruned", func(t *testing.T) {
		unpruned.migrate(t)
		m := c.ended(t, unpruned.Resource, soon)
		mustSucceed(t, m)
		rewroteAll(t, m, 60)
		unpruned.judge.stored(t, unpruned.encoding("v2"))
		unpruned.judge.onlyEncodings(t, 1)
		c.said(t, m.Name, "StoredVersionsNotPruned", 1, forbidding)
		if versions := c.storedVersions(t, unpruned.custom); !sameStrings(versions, "v1", "v2") {
			t.Errorf("status.storedVersions is %v", versions)
		}
		if tries := pruned.Load(); tries != 1 {
			t.Errorf("it was tried %d times to prune", tries)
		}
	})
	t.Run("the definition cannot be read", func(t *testing.T) {
		unread.migrate(t)
		unread.writes.reach(t, unread.n, soon)
		unread.endHeldUp(t, "customresourcedefinitions", forbidding)
		if read.Load() == 0 {
			t.Error("nobody asked for the definition at the end")
		}
		allowed.Store(true)
		began := time.Now()
		unread.succeeded(t, soon, 1)
		t.Logf("it ended within %v of the answer being right again", time.Since(began).Round(time.Millisecond))
	})
}

// testStatusCannotBeWritten forbids to write the status of a migration. It does not go on before it can be saved.
func testStatusCannotBeWritten(t *testing.T, c *cluster) {
	unsaved := c.stage(t, "ledgers", "Ledger", 60)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int32
	var allowed atomic.Bool
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+unsaved.Resource+"/status") && !allowed.Load() {
			tries.Add(1)
			return unsaved.forbidden()
		}
		return controlplane.Verdict{}
	})
	c.startProcess(t, framework.Process{Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters)})
	unsaved.migrate(t)
	framework.Eventually(t, soon, func(context.Context) error {
		if n := tries.Load(); n < 3 {
			return fmt.Errorf("it was tried %d times", n)
		}
		return nil
	})
	c.said(t, unsaved.Resource, "StatusNotWritten", 1, forbidding)
	// Longer than what the migration waits for until it may write.
	framework.During(t, 4*settle, func(context.Context) error {
		if n := unsaved.writes.count(); n > 0 {
			return fmt.Errorf("%d objects were rewritten", n)
		}
		return nil
	})
	allowed.Store(true)
	unsaved.succeeded(t, soon, 1)
}

// endHeldUp wants the Running condition to say soon what holds up the end, in one of these words, for as long as it
// does.
func (s *scene) endHeldUp(t *testing.T, oneOf ...string) {
	t.Helper()
	framework.Eventually(t, toldWithin, func(ctx context.Context) error {
		m, err := s.fetch(ctx, s.Resource)
		if err != nil {
			return err
		}
		if running := condition(m, v1alpha1.MigrationRunning); running != nil {
			for _, part := range oneOf {
				if strings.Contains(running.Message, part) {
					t.Logf("it says %s: %s", running.Reason, running.Message)
					return nil
				}
			}
		}
		return fmt.Errorf("its condition does not say one of %q: %s", oneOf, words(m))
	})
}

// isAbout reports whether the path is that of an object.
func (s *scene) isAbout(path string) bool {
	return strings.HasPrefix(path, "/apis/"+s.Group+"/") && strings.Contains(path, "/"+s.Resource+"/")
}

func (s *scene) definitionPath() string {
	return "/apis/" + apiextensionsv1.SchemeGroupVersion.String() + "/customresourcedefinitions/" + s.String()
}

// forbidden is the API server's answer to those who may not do what they ask for.
func (s *scene) forbidden() controlplane.Verdict {
	definitions := apiextensionsv1.Resource("customresourcedefinitions")
	status := apierrors.NewForbidden(definitions, s.String(), errors.New(forbidding)).Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, err := json.Marshal(status)
	if err != nil {
		return controlplane.Verdict{Status: http.StatusInternalServerError, Body: err.Error()}
	}
	return controlplane.Verdict{
		Status: http.StatusForbidden,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   string(body),
	}
}
