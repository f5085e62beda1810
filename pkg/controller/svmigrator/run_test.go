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
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	"sigs.k8s.io/svm-api/client/informers/externalversions"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// agreeing is an Observer of servers that have long written v2 of widgets.
type agreeing struct{ Observer }

func (agreeing) CheckLeases(context.Context) error { return nil }
func (agreeing) CheckCanAskEach() error            { return nil }

func (agreeing) ReadAggregated(context.Context, string) error { return nil }

func (agreeing) Observe(schema.GroupResource) storageversion.Observation {
	seen := metav1.NewTime(noon)
	return storageversion.Observation{
		Resource: widgets, Class: storageversion.Custom, Presence: storageversion.Served,
		Sightings: []storageversion.Sighting{{
			Since: noon, Writing: []string{v2}, Evidence: migrationv1alpha1.StorageEvidence{
				Source:                   migrationv1alpha1.EvidenceFromCustomResourceDefinition,
				FirstObservedTime:        &seen,
				CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{UID: "widgets", Generation: 1},
			},
		}},
	}
}

// stage is a controller whose clients and caches have some migrations of widgets.
type stage struct {
	*Controller
	cached cache.Indexer
}

func newStage(t *testing.T, migrations ...*migrationv1alpha1.StorageVersionMigration) (*stage, context.Context) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset()
	informers := externalversions.NewSharedInformerFactory(client, 0).Migration().V1alpha1()
	caches, err := controller.NewCaches(informers, "test")
	if err != nil {
		t.Fatal(err)
	}
	e := &environment{
		client: client.MigrationV1alpha1(), observer: agreeing{}, caches: caches, events: record.NewFakeRecorder(10),
		clock: clock.RealClock{},
	}
	s := &stage{&Controller{env: e, runs: newRuns()}, informers.StorageVersionMigrations().Informer().GetIndexer()}
	s.queue = controller.NewQueue(controller.QueueOptions[string]{Name: t.Name(), Clock: e.clock})
	e.followers = newFollowers(e, func(schema.GroupResource) {})
	for _, m := range migrations {
		if err := client.Tracker().Add(m); err != nil {
			t.Fatal(err)
		}
		s.change(t, m)
	}
	return s, ctx
}

// change makes the caches show a migration.
func (s *stage) change(t *testing.T, m *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	if err := s.cached.Update(m); err != nil {
		t.Fatal(err)
	}
	s.migrationChanged(m)
}

func (s *stage) run(m *migrationv1alpha1.StorageVersionMigration) *migrationRun {
	return &migrationRun{
		env: s.env, status: &statusWriter{env: s.env, stored: m}, stop: func(error) {},
		name: m.Name, uid: m.UID, resource: widgets, ready: &readyOrder{},
	}
}

var toV2 = Decision{Verdict: Go, Target: boundTo(3)}

// TestStatusThatNoMigratorWrote has somebody take the conditions and a part of the status away, so that the migration
// runs again. What is left of the status is about another time.
func TestStatusThatNoMigratorWrote(t *testing.T) {
	now := metav1.NewTime(noon)
	left := migrationv1alpha1.StorageVersionMigrationStatus{
		SweepCompletionTime: &now, BaselineResourceVersion: "5",
		Progress: &migrationv1alpha1.MigrationProgress{Rewritten: 7, Processed: 7},
	}
	started := left
	started.StartTime = &now
	for name, status := range map[string]migrationv1alpha1.StorageVersionMigrationStatus{
		"all is said to be done":   left,
		"no progress is left":      {SweepCompletionTime: &now},
		"it started, but for what": started,
		"a target is left":         {Target: boundTo(2), SweepCompletionTime: &now},
	} {
		t.Run(name, func(t *testing.T) {
			lists := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				lists++
				refuseLists(w, request)
			}))
			defer server.Close()
			m := made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Status = status })
			s, ctx := newStage(t, m)
			engine, err := rewrite.NewEngine(&rest.Config{Host: server.URL}, pacer.New(pacer.Options{}), s.env.clock, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			r := s.run(m)
			r.served = rewrite.Resource{GroupVersionResource: widgets.WithVersion("v2"), Class: storageversion.Custom}
			r.prepareTask(ctx, toV2)
			if err := r.storeTarget(ctx, toV2); err != nil && err != errStopped {
				t.Fatal(err)
			}
			if got := r.status.stored.Status; got.Target == nil || *got.Target.Epoch != 3 ||
				got.SweepCompletionTime != nil || got.Progress != nil || got.BaselineResourceVersion != "" {
				t.Errorf("it begins with the status %+v", got)
			}
			if err := engine.Run(ctx, r.task, r.served, r); err == nil || lists == 0 {
				t.Errorf("%d lists, and the error is %v", lists, err)
			}
		})
	}
}

// TestFieldsThatAreRefused has a definition of another program. The API server refuses fields if it is asked to, and
// otherwise drops them. Every write on which a run depends returns the error, and the end of a migration is not
// repeated. The queue ends the controller because of such an error.
func TestFieldsThatAreRefused(t *testing.T) {
	m := made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Status.Target = boundTo(3) })
	s, ctx := newStage(t, m)
	client := fake.NewClientset(m)
	client.PrependReactor("update", "storageversionmigrations",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			options := action.(clienttesting.UpdateActionImpl).GetUpdateOptions()
			return options.FieldValidation == metav1.FieldValidationStrict, nil,
				apierrors.NewBadRequest(`strict decoding error: unknown field "status.target"`)
		})
	s.env.client = client.MigrationV1alpha1()
	for name, write := range map[string]func(r *migrationRun) error{
		"the target":   func(r *migrationRun) error { return r.storeTarget(ctx, toV2) },
		"the position": func(r *migrationRun) error { return r.SavePosition(ctx, sweep.Position{Complete: true}) },
		"the end":      func(r *migrationRun) error { return r.finish(ctx) },
	} {
		r := s.run(m)
		r.task = rewrite.NewTask(storageversion.BuiltIn, sweep.Position{})
		if err := write(r); controller.EndsManager(err) == nil {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// TestConditionOfALaterRun continues migrations. If all objects are done, or the last run made no progress, many such
// runs may follow each other. Then the condition stays as it is, and the log does not say that the migration continues.
func TestConditionOfALaterRun(t *testing.T) {
	inTree := waitDecision(migrationv1alpha1.MigrationReasonAwaitingInTree, "it waits")
	queued := waitDecision(migrationv1alpha1.MigrationReasonQueued, "the other one runs")
	noProgress := running(boundTo(3), rewrite.Report{Phase: rewrite.Stuck})
	now := metav1.NewTime(noon)
	server := httptest.NewServer(http.HandlerFunc(refuseLists))
	t.Cleanup(server.Close)
	suspended := waitDecision(migrationv1alpha1.MigrationReasonSuspended, "it was suspended")
	const rewriting = migrationv1alpha1.MigrationReasonRewriting
	for name, test := range map[string]struct {
		says   statusChange
		memory runMemory
		done   *metav1.Time
		lines  int
		want   string
	}{
		"postponed, and all objects are done": {waiting(inTree), runMemory{whyPostponed: &inTree}, &now, 0, inTree.Reason},
		"suspended, and all objects are done": {waiting(suspended), runMemory{}, &now, 0, rewriting},
		"postponed":                           {waiting(inTree), runMemory{whyPostponed: &inTree}, nil, 1, rewriting},
		"beside another migration":            {waiting(queued), runMemory{}, nil, 1, rewriting},
		"stuck": {noProgress, runMemory{stuck: true}, nil, 0,
			migrationv1alpha1.MigrationReasonNoProgress},
		"stuck, and suspended later": {waiting(suspended), runMemory{stuck: true}, nil, 0, rewriting},
	} {
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.StartTime, m.Status.Target = &now, boundTo(3)
			if m.Status.SweepCompletionTime = test.done; test.done != nil {
				m.Status.Progress = &migrationv1alpha1.MigrationProgress{}
			}
			test.says(&m.Status, noon)
		})
		s, ctx := newStage(t, m)
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		ctx = klog.NewContext(ctx, logger)
		r := s.run(m)
		s.runs.claimResource(r)
		r.runMemory = test.memory
		r.served = rewrite.Resource{GroupVersionResource: widgets.WithVersion("v2"), Class: storageversion.Custom}
		r.prepareTask(ctx, toV2)
		if err := r.storeTarget(ctx, toV2); err != nil && !errors.Is(err, errStopped) {
			t.Fatal(err)
		}
		engine, err := rewrite.NewEngine(&rest.Config{Host: server.URL}, pacer.New(pacer.Options{}), s.env.clock, 500, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := engine.Run(ctx, r.task, r.served, r); (err == nil) != (test.done != nil) {
			t.Errorf("%s: the run ended with %v", name, err)
		}
		lines := strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "Migration continues")
		status := &r.status.stored.Status
		says := slices.ContainsFunc(status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
			return c.Status == corev1.ConditionTrue && c.Reason == test.want
		})
		if lines != test.lines || !says {
			t.Errorf("%s: %d lines, want %d, and the conditions are %+v", name, lines, test.lines, status.Conditions)
		}
	}
}

// refuseLists answers that objects cannot be listed.
func refuseLists(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusMethodNotAllowed)
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":405}`))
}

// TestPositionAfterDeniedObjects begins a migration after one with denied objects. If the status of that one names all
// of them, nothing is listed, and what it counted stays. Otherwise a list counts everything anew.
func TestPositionAfterDeniedObjects(t *testing.T) {
	const most = migrationv1alpha1.MaxDeniedObjects
	counts := map[string]int64{"v1alpha1": 1}
	for denied, want := range map[int64]sweep.Position{
		most: {Baseline: "5", Versions: counts}, most + 1: {Baseline: "5"},
	} {
		before := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status = migrationv1alpha1.StorageVersionMigrationStatus{
				BaselineResourceVersion: "5", SweepCompletionTime: new(metav1.NewTime(noon)),
				Progress:              &migrationv1alpha1.MigrationProgress{Processed: denied, Denied: denied},
				DeniedObjects:         make([]migrationv1alpha1.DeniedObject, most),
				ManagedFieldsVersions: []migrationv1alpha1.ManagedFieldsVersion{{Version: "v1alpha1", Objects: 1}},
			}
		})
		if diff := cmp.Diff(want, positionAfter(before)); diff != "" {
			t.Errorf("after %d denied objects (-want +got):\n%s", denied, diff)
		}
	}
}

// TestDeniedObjectsInAnotherProcess has another process become the leader after the trigger's next migration has begun.
// Until a position is stored, the status does not say that this migration is for the denied objects alone.
func TestDeniedObjectsInAnotherProcess(t *testing.T) {
	denied, stored := []migrationv1alpha1.DeniedObject{{Name: "w", UID: "w"}}, &migrationv1alpha1.MigrationProgress{}
	failedBefore := func(epoch int64) *migrationv1alpha1.StorageVersionMigration {
		return made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Name, m.UID = "before", "before"
			m.Status = migrationv1alpha1.StorageVersionMigrationStatus{
				Target: boundTo(epoch), SweepCompletionTime: new(metav1.NewTime(noon)), DeniedObjects: denied,
				Progress: &migrationv1alpha1.MigrationProgress{Processed: 9, Rewritten: 8, Denied: 1},
			}
			failed(objectsDenied(&m.Status))(&m.Status, noon)
		})
	}
	for name, test := range map[string]struct {
		before   *migrationv1alpha1.StorageVersionMigration
		progress *migrationv1alpha1.MigrationProgress
		cleans   bool
		want     []migrationv1alpha1.DeniedObject
	}{
		"no position is stored":                    {before: failedBefore(3), want: denied},
		"a position is stored":                     {before: failedBefore(3), progress: stored},
		"the earlier migration is deleted":         {},
		"the earlier migration has another target": {before: failedBefore(2)},
		"managedFields are cleaned":                {before: failedBefore(3), cleans: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Spec.Target, m.Status.Target, m.Status.StartTime = boundTo(3), boundTo(3), new(metav1.NewTime(noon))
				m.Status.Progress = test.progress
			})
			migrations := []*migrationv1alpha1.StorageVersionMigration{m}
			if test.before != nil {
				migrations = append(migrations, test.before)
			}
			s, ctx := newStage(t, migrations...)
			s.env.options.CleanManagedFields = test.cleans
			r := s.run(m)
			r.served.Class = storageversion.Custom
			r.prepareTask(ctx, toV2)
			if diff := cmp.Diff(test.want, r.task.Only); diff != "" {
				t.Errorf("the objects of the task (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPruningThatIsNotDone has the API server refuse to prune status.storedVersions with 409. If somebody wrote the
// definition, the check has to be repeated. If a webhook denies it, the migration succeeds in spite of that. Without
// the option nothing is pruned. If the run is stopped meanwhile, nobody knows whether it was done.
func TestPruningThatIsNotDone(t *testing.T) {
	patches, stop := 0, context.CancelFunc(nil)
	for message, want := range map[string]error{
		"the object has been modified":                        controller.ErrOutdated,
		`admission webhook "x" denied the request: no, never`: nil,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.Method == http.MethodGet {
				_, _ = fmt.Fprint(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",`+
					`"metadata":{"name":"widgets.example.com","uid":"widgets","generation":1,"resourceVersion":"7"},`+
					`"spec":{"group":"example.com","names":{"plural":"widgets","kind":"Widget"},`+
					`"versions":[{"name":"v2","served":true,"storage":true}]},"status":{"storedVersions":["v1","v2"]}}`)
				return
			}
			patches++
			if stop != nil {
				_, _ = io.Copy(io.Discard, r.Body) // From then on the server notices that the client goes.
				stop()
				<-r.Context().Done()
			}
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,`+
				`"message":%q}`, message)
		}))
		defer server.Close()
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Status.Target = boundTo(3) })
		s, ctx := newStage(t, m)
		s.env.documents, s.env.options.PruneStoredVersions = readerOf(t, server), true
		if err := s.run(m).verifyAndPruneDefinition(ctx, s.env.observer.Observe(widgets)); !errors.Is(err, want) {
			t.Errorf("%s: the error is %v, want %v", message, err, want)
		}
		said := len(s.env.events.(*record.FakeRecorder).Events)
		var stopped context.Context
		stopped, stop = context.WithCancel(ctx) // Somebody suspends the migration while the request is on its way.
		err := s.run(m).verifyAndPruneDefinition(stopped, s.env.observer.Observe(widgets))
		if stop = nil; !errors.Is(err, context.Canceled) || len(s.env.events.(*record.FakeRecorder).Events) > said {
			t.Errorf("the run was stopped while it pruned, and the error is %v", err)
		}
		patches = 0
		s.env.options.PruneStoredVersions = false
		if err := s.run(m).verifyAndPruneDefinition(ctx, s.env.observer.Observe(widgets)); err != nil || patches > 0 {
			t.Errorf("without pruning there were %d patches, and the error is %v", patches, err)
		}
	}
}

// TestMigrationOfNothing has a migration without a resource, or of a subresource, as definitions of other programs let
// people create them. No StorageState can have its name, so none is read.
func TestMigrationOfNothing(t *testing.T) {
	for _, resource := range []string{"", "widgets/status"} {
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Resource.Resource = resource })
		s, ctx := newStage(t, m)
		s.env.client = versioned.NewForConfigOrDie(&rest.Config{Host: "127.0.0.1:1"}).MigrationV1alpha1()
		d, err := s.env.decide(ctx, m)
		if err != nil || d.Verdict != Fail || d.Reason != migrationv1alpha1.MigrationReasonInvalidResource {
			t.Errorf("%q: the decision is %+v, and the error %v", resource, d, err)
		}
	}
}
