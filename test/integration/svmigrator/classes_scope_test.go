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
	"strings"
	"testing"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// testOtherScope has an object that is left in etcd from a definition that had no namespaces. Lists have it, and no
// request reaches it. It must not hold up the others.
func testOtherScope(t *testing.T, c *cluster) {
	homes := newCustom("homes", "Home")
	c.define(t, homes)
	c.fill(t, homes, "home", 3)
	const left = `{"apiVersion":"migration.test/v1","kind":"Home","metadata":{"name":"left",` +
		`"uid":"c0ffee00-0000-4000-8000-000000000001"}}`
	if _, err := c.Etcd().Client().Put(t.Context(), "/registry/migration.test/homes/left", left); err != nil {
		t.Fatal(err)
	}
	c.flip(t, homes, "v2")
	c.migrate(t, "homes", homes.WithVersion(""))
	c.startManager(t, "manager")
	m := c.ended(t, "homes", soon)
	mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied)
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: 3, Denied: 1})
	const key = "which ends with /migration.test/homes/left, "
	if message := m.Status.DeniedObjects[0].Message; !strings.Contains(message, key) {
		t.Errorf("the status says %q", message)
	}
}
