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
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// readLate is an Observer of an aggregated server of widgets. Whoever reads it finds out what it writes now, or gets an
// error. Until then it seems to write v2.
type readLate struct {
	agreeing
	now  string
	err  error
	read bool
}

func (o *readLate) ReadAggregated(_ context.Context, group string) error {
	o.read = group == widgets.Group
	return o.err
}

func (o *readLate) Observe(resource schema.GroupResource) storageversion.Observation {
	observation := o.agreeing.Observe(resource)
	observation.Class = storageversion.Aggregated
	if o.read && o.err == nil {
		observation.Sightings[0].Writing = []string{o.now}
	}
	return observation
}

// TestAggregatedServerIsReadAtTheEnd has all objects of a migration done. What was known of the aggregated server may
// be out of date by then.
func TestAggregatedServerIsReadAtTheEnd(t *testing.T) {
	serves := widgets.Resource
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		document := `{"kind":"APIGroup","apiVersion":"v1","versions":[{"version":"v2"}]}`
		if r.URL.Path == "/apis/example.com/v2" {
			document = fmt.Sprintf(`{"kind":"APIResourceList","apiVersion":"v1",`+
				`"resources":[{"name":%q,"verbs":["list","patch"]}]}`, serves)
		}
		_, _ = w.Write([]byte(document))
	}))
	t.Cleanup(server.Close)
	away := errors.New("away")
	for name, test := range map[string]struct {
		observer readLate
		serves   string
		names    string
		want     error
		succeeds bool
	}{
		"it writes the same":         {observer: readLate{now: v2}, serves: "widgets", succeeds: true},
		"it writes something else":   {observer: readLate{now: v1}, serves: "widgets", want: errStopped},
		"it cannot be read any more": {observer: readLate{err: away}, serves: "widgets", want: away},
		"somebody replaces it":       {observer: readLate{now: v2}, serves: "gadgets", want: errStopped},
		"a version was withdrawn":    {observer: readLate{now: v2}, serves: "widgets", names: "v1", succeeds: true},
	} {
		t.Run(name, func(t *testing.T) {
			serves = test.serves
			m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Status.StartTime = new(metav1.NewTime(noon))
				m.Status.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: v2, EncodingVersion: "example.com/v2"}
				m.Spec.Resource.Version = test.names
			})
			s, ctx := newStage(t, m)
			s.env.observer, s.env.documents = &test.observer, readerOf(t, server)
			r := s.run(m)
			r.served = rewrite.Resource{GroupVersionResource: widgets.WithVersion("v2"), Class: storageversion.Aggregated}
			if err := r.tryFinish(ctx); !errors.Is(err, test.want) {
				t.Errorf("the error is %v, want %v", err, test.want)
			}
			if r.status.stored.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) != test.succeeds {
				t.Errorf("the conditions are %+v", r.status.stored.Status.Conditions)
			}
		})
	}
}

// TestSuccessNeedsEveryObject ends migrations that have gone through all objects. In one of them an object has an
// outcome that this release does not know. If another process goes on with it, the object counts as denied.
func TestSuccessNeedsEveryObject(t *testing.T) {
	for name, test := range map[string]struct {
		rewritten, left int64
		want            migrationv1alpha1.MigrationConditionType
	}{
		"each is migrated or gone": {rewritten: 6, want: migrationv1alpha1.MigrationSucceeded},
		"an outcome is unknown":    {rewritten: 5, left: 1, want: migrationv1alpha1.MigrationFailed},
	} {
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status = migrationv1alpha1.StorageVersionMigrationStatus{
				StartTime: new(metav1.NewTime(noon)), SweepCompletionTime: new(metav1.NewTime(noon)),
				Target: &migrationv1alpha1.MigrationTarget{StorageVersionHash: v2, EncodingVersion: "example.com/v2"},
				Progress: &migrationv1alpha1.MigrationProgress{
					Processed: 9, Rewritten: test.rewritten, AlreadyCurrent: 1, WrittenByOthers: 1, Gone: 1,
				},
			}
		})
		s, ctx := newStage(t, m)
		r := s.run(m)
		if err := r.tryFinish(ctx); err != nil || !r.status.stored.IsConditionTrue(test.want) {
			t.Errorf("%s: the error is %v, the conditions are %+v", name, err, r.status.stored.Status.Conditions)
		}
		if p := positionOf(&m.Status); p.Counts[sweep.Denied] != test.left || p.Counts.Processed() != 9 {
			t.Errorf("%s: it goes on with %v", name, p.Counts)
		}
	}
}

// TestWhoeverElseServesTheGroup has an aggregated server away that serves other resources of the group of a definition.
func TestWhoeverElseServesTheGroup(t *testing.T) {
	away := errors.New("away")
	aggregated := &readLate{err: away}
	if err := (&environment{observer: aggregated}).readAggregated(t.Context(), widgets); !errors.Is(err, away) {
		t.Errorf("it serves the resource, and the error is %v", err)
	}
	if err := (&environment{observer: customBeside{aggregated}}).readAggregated(t.Context(), widgets); err != nil {
		t.Errorf("it serves other resources of the group: %v", err)
	}
}

// customBeside is an Observer of a custom resource, and of an aggregated server of its group.
type customBeside struct{ *readLate }

func (o customBeside) Observe(resource schema.GroupResource) storageversion.Observation {
	return o.agreeing.Observe(resource)
}

// TestServerThatComesBackDuringAMigration has a server count as gone when the definition changed. It was frozen, so it
// may write what the earlier definition said before it follows, as it does at the end.
func TestServerThatComesBackDuringAMigration(t *testing.T) {
	both := []storageversion.Process{serverA, serverB}
	stored := 5
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if stored == 0 {
			writeDefinitionMissing(w)
			return
		}
		_, _ = fmt.Fprintf(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
			"metadata":{"uid":"widgets","generation":%d},"status":{"storedVersions":["v2"]},"spec":{"group":"example.com",
			"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v2","served":true,"storage":true}]}}`, stored)
	}))
	t.Cleanup(server.Close)
	const failed, succeeded = migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationSucceeded
	for name, test := range map[string]struct {
		since  time.Duration // from an hour after the change of the definition to the beginning
		lag    error
		stored int // the generation of the definition, or 0 if there is none
		want   migrationv1alpha1.MigrationConditionType
		err    error
	}{
		"it may have missed the change": {stored: 5, want: failed},
		"it has followed long ago":      {since: 10 * time.Hour, stored: 5, want: succeeded},
		"it does not follow":            {since: 10 * time.Hour, lag: errLags, stored: 5, want: failed},
		"it has not heard of a change":  {since: 10 * time.Hour, lag: errNotHeard, stored: 5, err: errNotHeard},
		"it follows, and the watch is late": {
			since: 10 * time.Hour, lag: errLags, stored: 6, err: controller.ErrOutdated,
		},
		"the definition was deleted": {since: 10 * time.Hour, lag: errLags, err: controller.ErrOutdated},
	} {
		stored = test.stored
		o := newKnown(both...)
		o.lag = test.lag
		o.clock.Step(test.since)
		began := o.clock.Now()
		observation := o.Observe(widgets)
		last, _ := observation.Last()
		s, ctx := stageOf(t, o, made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.StartTime, m.Status.Evidence = new(metav1.NewTime(began)), &last.Evidence
			m.Status.Target = &migrationv1alpha1.MigrationTarget{
				StorageVersionHash: last.Writing[0], EncodingVersion: "example.com/v2",
			}
		}))
		s.env.documents = readerOf(t, server)
		r := s.run(s.env.caches.Migration("m"))
		r.served = rewrite.Resource{GroupVersionResource: widgets.WithVersion("v2"), Class: storageversion.Custom}
		o.SetServers(began.Add(-time.Minute), both[:1], true)
		o.SetServers(began.Add(2*time.Minute), both, true)
		o.clock.SetTime(began.Add(time.Hour))
		if err := r.tryFinish(ctx); !errors.Is(err, test.err) ||
			r.status.stored.Finished() != (test.want != "") || test.want != "" && !r.status.stored.IsConditionTrue(test.want) {
			t.Errorf("%s: the error is %v, and the conditions are %+v", name, err, r.status.stored.Status.Conditions)
		}
	}
}

// TestDefinitionThatChangesDuringARun wants the run to end if a schema changes, because it has read the earlier one.
// The storage version is the same, so the migration goes on.
func TestDefinitionThatChangesDuringARun(t *testing.T) {
	o := newKnown(serverA)
	observation := o.Observe(widgets)
	last, _ := observation.Last()
	s, _ := stageOf(t, o, made(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Status.StartTime, m.Status.Evidence = new(metav1.NewTime(o.clock.Now())), &last.Evidence
		m.Status.Target = &migrationv1alpha1.MigrationTarget{
			StorageVersionHash: last.Writing[0], EncodingVersion: "example.com/v2",
		}
	}))
	m := s.env.caches.Migration("m")
	var stopped error
	r := s.run(m)
	s.runs.claimResource(r)
	r.stop, r.contentSince = func(cause error) { stopped = cause }, observation.ContentSince
	r.withTarget.Store(m)
	for i, want := range []error{nil, nil, errStopped} {
		o.SetDefinition(o.clock.Now(), widgets, &storageversion.Definition{
			UID: "widgets", Generation: int64(5 + i), Group: widgets.Group, Kind: "Widget", StorageVersion: "v2",
			ServedVersions: []string{"v2"}, DefinedVersions: []string{"v2"}, StoredVersions: []string{"v2"}, Established: true,
			Content: []string{"", "", "another schema"}[i],
		})
		s.resourceChanged(widgets)
		if !errors.Is(stopped, want) {
			t.Errorf("after %d changes the run is stopped with %v, want %v", i, stopped, want)
		}
	}
	if d := s.env.decideCached(m); d.Verdict != Go {
		t.Errorf("the migration cannot go on: %+v", d)
	}
}
