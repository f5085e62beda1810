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
	"errors"
	"regexp"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// turnObjects is how many objects each migration has that events turn.
const turnObjects = 150

// testTurnsOfEvents takes migrations the ground from under their feet, several at the same time.
func testTurnsOfEvents(t *testing.T, c *cluster) {
	manager := c.startManager(t, "manager", steadily(8, "--concurrent-migrations=6", "--migration-chunk-size=50")...)
	turns := []struct {
		name, plural, kind string
		run                func(t *testing.T, s *scene)
	}{
		{"the migration is deleted", "orphans", "Orphan", func(t *testing.T, s *scene) { migrationDeleted(t, s, manager) }},
		{"the definition stores the old version again", "waverers", "Waverer", definitionFlipsBack},
		{"the definition changes to and fro", "shakers", "Shaker", definitionFlipsToAndFro},
		{"the version in use is not served any more", "retirees", "Retiree", versionNotServed},
	}
	var scenes []*scene
	for _, turn := range turns {
		scenes = append(scenes, c.stage(t, turn.plural, turn.kind, turnObjects))
	}
	var running sync.WaitGroup
	for i, turn := range turns {
		running.Go(func() { t.Run(turn.name, func(t *testing.T) { turn.run(t, scenes[i]) }) })
	}
	running.Wait()
	// The objects go with their definition. So slow a manager cannot be done before that.
	framework.StopManager(t, manager)
	c.startManager(t, "slow-manager", steadily(12)...)
	s := c.stage(t, "vanishers", "Vanisher", turnObjects)
	t.Run("the definition is deleted", func(t *testing.T) { definitionDeleted(t, s) })
}

func migrationDeleted(t *testing.T, s *scene, manager *controlplane.Process) {
	s.migrate(t)
	s.writes.reach(t, turnObjects/5, soon)
	if err := s.Migrations().Delete(t.Context(), s.Resource, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended := regexp.MustCompile(`"Run ended".* migration="` + s.Resource + `" .* err="the migration is gone`)
	framework.Eventually(t, soon, func(context.Context) error {
		if !ended.MatchString(manager.Log()) {
			return errors.New("the run of the migration that was deleted goes on")
		}
		return nil
	})
	s.stops(t)
	if changes := s.judge.onlyEncodings(t, 1); len(changes.Encoded) == turnObjects {
		t.Error("all objects were rewritten before the migration was deleted")
	}
}

func definitionFlipsBack(t *testing.T, s *scene) {
	s.migrate(t)
	s.writes.reach(t, turnObjects/5, soon)
	s.flip(t, s.custom, "v1")
	s.stops(t)
	m := s.ended(t, s.Resource, soon)
	mustFail(t, m, v1alpha1.MigrationReasonAgreementLost)
	if changes := s.judge.onlyEncodings(t, 2); len(changes.Encoded) == turnObjects {
		t.Error("all objects were rewritten before the definition was changed")
	}
	if versions := s.storedVersions(t, s.custom); !sameStrings(versions, "v1", "v2") {
		t.Errorf("status.storedVersions is %v after a migration that failed", versions)
	}
}

// definitionFlipsToAndFro has the old version stored for a moment, in which an object is written.
func definitionFlipsToAndFro(t *testing.T, s *scene) {
	s.migrate(t)
	s.writes.reach(t, turnObjects/5, soon)
	s.flip(t, s.custom, "v1")
	s.flip(t, s.custom, "v2")
	m := s.ended(t, s.Resource, soon)
	mustFail(t, m, v1alpha1.MigrationReasonAgreementLost)
	s.judge.onlyEncodings(t, 2)
	if versions := s.storedVersions(t, s.custom); !sameStrings(versions, "v1", "v2") {
		t.Errorf("status.storedVersions is %v after a migration that failed", versions)
	}
}

// versionNotServed takes away the version by which objects are rewritten. They are still served by the other one, but
// no webhook converts them.
func versionNotServed(t *testing.T, s *scene) {
	s.migrate(t)
	s.writes.reach(t, turnObjects/5, soon)
	s.ChangeDefinition(t, s.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[1].Served = false
	})
	mustFail(t, s.ended(t, s.Resource, soon), v1alpha1.MigrationReasonVersionNotServed, `"v2"`)
	s.judge.onlyEncodings(t, 1)
	if versions := s.storedVersions(t, s.custom); !sameStrings(versions, "v1", "v2") {
		t.Errorf("status.storedVersions is %v after a migration that failed", versions)
	}
}

func definitionDeleted(t *testing.T, s *scene) {
	s.migrate(t)
	s.writes.reach(t, turnObjects/20, soon)
	if err := s.Definitions().Delete(t.Context(), s.String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := time.Now()
	m := s.ended(t, s.Resource, soon)
	t.Logf("it ended %v after the definition was deleted: %s", time.Since(deleted), words(m))
	// The API server deletes the objects before the definition. All of them may be rewritten or gone before anybody hears
	// of that.
	p := m.Status.Progress
	if condition(m, v1alpha1.MigrationSucceeded) == nil || p == nil || p.Gone == 0 && p.Rewritten < turnObjects {
		mustFail(t, m, v1alpha1.MigrationReasonResourceNotServed)
	}
}

// stops wants requests for objects to end before all are written, which takes half a minute at the rate of
// these migrations.
func (s *scene) stops(t *testing.T) {
	t.Helper()
	before, last := s.patches(t, time.Time{}), -1
	now := before
	for now != last {
		last = now
		time.Sleep(3 * time.Second)
		now = s.patches(t, time.Time{})
	}
	t.Logf("%d PATCH requests came before the event, %d after", before, now-before)
	if count := s.writes.count(); before == 0 || count >= s.n {
		t.Errorf("%d of %d objects were written when it stopped, after %d requests before the event", count, s.n, before)
	}
}
