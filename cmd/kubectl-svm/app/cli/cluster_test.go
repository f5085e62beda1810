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
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// TestNoStates asks API servers without the definitions of this release whether there are StorageStates.
func TestNoStates(t *testing.T) {
	const list = `{"kind":"StorageStateList","apiVersion":"migration.k8s.io/v1alpha1","items":[]}`
	for name, test := range map[string]struct {
		version, answer string
		want            bool
	}{
		"nothing is served":                    {"", "", true},
		"it has no schema yet":                 {"v1alpha1", list, false},
		"another version":                      {"v2", "", false},
		"discovery does not know the list yet": {"", list, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			version := fmt.Sprintf(`{"groupVersion":"migration.k8s.io/%[1]s","version":"%[1]s"}`, test.version)
			answers := map[string]string{
				"/apis": fmt.Sprintf(`{"kind":"APIGroupList","groups":[{"name":"migration.k8s.io","versions":[%s]}]}`, version),
				"/apis/migration.k8s.io/" + test.version: `{"kind":"APIResourceList","resources":[
					{"name":"storagestates","kind":"StorageState","verbs":["list","patch"]}]}`,
				"/openapi/v3": `{"paths":{}}`,
			}
			if test.version == "" {
				answers["/apis"] = `{"kind":"APIGroupList","groups":[]}`
			}
			answers["/apis/migration.k8s.io/v1alpha1/storagestates"] = test.answer
			if answers[r.URL.Path] == "" {
				http.NotFound(w, r)
				return
			}
			_, _ = fmt.Fprint(w, answers[r.URL.Path])
		}))
		config := &rest.Config{Host: server.URL}
		clients := &Clients{
			Discovery: discovery.NewDiscoveryClientForConfigOrDie(config), Migration: migrationclient.NewForConfigOrDie(config),
		}
		_, err := clients.Read(t.Context())
		if missing, is := errors.AsType[DefinitionsError](err); !is || missing.NoStates != test.want {
			t.Errorf("%s: got %+v, want that there are none: %t", name, err, test.want)
		}
		server.Close()
	}
}

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
		cluster.AddNamed()
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

// TestNextTry has the message about requests that fail. It may be older than the next try.
func TestNextTry(t *testing.T) {
	m := &migrationv1alpha1.StorageVersionMigration{}
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
		Type: migrationv1alpha1.MigrationRunning, Status: corev1.ConditionTrue, Message: "Rewriting an object has failed " +
			"since 2030-01-01T12:00:00Z, the next try is at 2030-01-01T12:01:38Z: a/b: no endpoints",
	}}
	const want = "Rewriting an object has failed since 2030-01-01T12:00:00Z: a/b: no endpoints"
	if got := CurrentCondition(m).Message; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	m.DeletionTimestamp, m.Finalizers = new(metav1.Now()), []string{"example.com/audit"}
	const kept = "Finalizers keep it: example.com/audit"
	if got := CurrentCondition(m); got.Type != Deleting || Failing(got) || got.Message != kept {
		t.Errorf("finalizers keep it, and its condition is %+v", got)
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
	cluster.AddNamed()
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

// TestGone has resources that are not served. Those of which there are only migrations that have ended are left out,
// unless a person names them.
func TestGone(t *testing.T) {
	migration := func(name, group, resource string, ended bool) migrationv1alpha1.StorageVersionMigration {
		m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Spec.Resource.Group, m.Spec.Resource.Resource = group, resource
		if ended {
			m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
				Type: migrationv1alpha1.MigrationFailed, Status: corev1.ConditionTrue,
			}}
		}
		return m
	}
	relic := migrationv1alpha1.StorageState{}
	relic.Spec.Resource = migrationv1alpha1.GroupResource{Group: "kept.example.com", Resource: "relics"}
	away := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
		{Group: "away.example.com", Version: "v1"}: errors.New("no endpoints"),
	}}
	cluster := &Cluster{
		Catalog: catalog(t),
		States:  []migrationv1alpha1.StorageState{relic},
		Migrations: []migrationv1alpha1.StorageVersionMigration{
			migration("live", "example.com", "widgets", true), migration("deleted", "example.com", "gadgets", true),
			migration("misspelt", "example.com", "widget", true), migration("alone", "alone.example.com", "gizmos", true),
			migration("old", "waits.example.com", "gears", true), migration("waits", "waits.example.com", "gears", false),
			migration("kept", "kept.example.com", "relics", true), migration("away", "away.example.com", "ghosts", true),
		},
	}
	cluster.Catalog.Incomplete = away
	cluster.AddNamed()
	for name, want := range map[string]string{
		"all": "events, events.events.k8s.io, gears.waits.example.com, ghosts.away.example.com, relics.kept.example.com, " +
			"secrets, widgets.example.com",
		"*.example.com":       "widgets.example.com",
		"*.alone.example.com": "gizmos.alone.example.com", // Nothing else is in the group.
		"gadgets":             "gadgets.example.com",
		"widget":              "widgets.example.com",
		"widget.example.com":  "widget.example.com",
	} {
		resources, err := cluster.Catalog.Resolve([]string{name})
		if got := join(resources); err != nil || got != want {
			t.Errorf("%s is %s and the error %v, want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]string{"all": "old waits away kept live ", "gadgets": "deleted "} {
		migrations, err := cluster.ResolveMigrations(name)
		got := ""
		for _, m := range migrations {
			got += m.Name + " "
		}
		if got != want || err != nil {
			t.Errorf("%s means %sand the error %v, want %s", name, got, err, want)
		}
	}
	gadgets := schema.GroupResource{Group: "example.com", Resource: "gadgets"}
	if _, err := cluster.RequireState(gadgets); err == nil || !strings.Contains(err.Error(), "does not serve it") {
		t.Errorf("it has no StorageState because of %v", err)
	}
	cluster.Migrations = append(cluster.Migrations, migration("new", "example.com", "gadgets", false))
	if cluster.AddNamed(); cluster.Catalog.Gone(gadgets) {
		t.Error("a migration waits for it")
	}
}
