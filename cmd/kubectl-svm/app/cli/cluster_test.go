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

package cli

import (
	"fmt"
	"testing"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// TestManyStates makes the resources of many states known. The work for each, counted in allocations, must not depend
// on how many there are.
func TestManyStates(t *testing.T) {
	const states, most = 2000, 100
	cluster := &Cluster{}
	for n := range states {
		state := migrationv1alpha1.StorageState{}
		state.Spec.Resource = migrationv1alpha1.GroupResource{Group: "example.com", Resource: fmt.Sprintf("widgets%05d", n)}
		cluster.States = append(cluster.States, state)
	}
	allocations := testing.AllocsPerRun(1, func() {
		cluster.Catalog = &Catalog{}
		cluster.addNamed()
	})
	if got := len(cluster.Catalog.Resources()); got != states {
		t.Errorf("the catalog has %d resources, want %d", got, states)
	}
	if each := allocations / states; each > most {
		t.Errorf("each of %d states took %.0f allocations, want %d at most", states, each, most)
	} else {
		t.Logf("each of %d states took %.0f allocations", states, each)
	}
}

func TestResolveMigrations(t *testing.T) {
	cluster := &Cluster{Catalog: &Catalog{}}
	for i, m := range []struct{ name, resource string }{
		{"old", "secrets"}, {"secrets", "secrets"}, {"new", "secrets"}, {"widgets", "secrets"}, {"other", "widgets"},
	} {
		migration := migrationv1alpha1.StorageVersionMigration{}
		migration.Name, migration.Spec.Resource.Resource = m.name, m.resource
		migration.CreationTimestamp.Time = time.Unix(int64(i), 0)
		cluster.Migrations = append(cluster.Migrations, migration)
	}
	cluster.addNamed()
	for name, want := range map[string]string{
		"old":     "old ",
		"secrets": "widgets new secrets old ",
		"widgets": "widgets other ",
		"all":     "widgets new secrets old other ",
		"nobody":  "",
	} {
		migrations, err := cluster.ResolveMigrations(name)
		got := ""
		for _, m := range migrations {
			got += m.Name + " "
		}
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s means %s and the error %v, want %s", name, got, err, want)
		}
	}
}
