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
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// oneIsAway is an Observer of servers one of which cannot be asked.
type oneIsAway struct {
	Observer
	away  error
	asked int
}

func (o *oneIsAway) Observe(resource schema.GroupResource) storageversion.Observation {
	return storageversion.Observation{Resource: resource}
}

func (o *oneIsAway) CheckCanAskEach() error { return o.away }

func (o *oneIsAway) AskEach(context.Context, func(context.Context, documents.Reader) error) error {
	o.asked++
	return o.away
}

// TestNoServerIsAskedWhileOneIsAway has a server that cannot be asked, and counts what the others are asked. Thousands
// of resources may wait for that server.
func TestNoServerIsAskedWhileOneIsAway(t *testing.T) {
	o := &oneIsAway{away: errors.New("away")}
	e, observation := &environment{observer: o}, o.Observe(widgets)
	if err := e.everyServerFollows(t.Context(), &observation, v2); !errors.Is(err, o.away) || o.asked > 0 {
		t.Errorf("the others were asked %d times, and the error is %v", o.asked, err)
	}
	o.away = nil
	if err := e.everyServerFollows(t.Context(), &observation, v2); err != nil || o.asked != 1 {
		t.Errorf("all were asked %d times, and the error is %v", o.asked, err)
	}
}

// TestWhatServersFollowed asks the servers, and then changes what they follow, or who they are.
func TestWhatServersFollowed(t *testing.T) {
	define := func(generation int64, content string) func(*known) {
		return func(o *known) {
			o.SetDefinition(o.clock.Now(), widgets, &storageversion.Definition{
				UID: "widgets", Generation: generation, Group: widgets.Group, Kind: "Widget", StorageVersion: "v2",
				ServedVersions: []string{"v2"}, StoredVersions: []string{"v2"}, Established: true, Content: content,
			})
		}
	}
	for name, test := range map[string]struct {
		change func(*known)
		again  bool
	}{
		"nothing":                             {func(*known) {}, false},
		"a generation that says the same":     {define(6, ""), false},
		"another schema":                      {define(6, "another schema"), true},
		"a generation that nobody saw before": {define(7, ""), true},
		"a server that may have been frozen": {func(o *known) {
			o.SetServers(o.clock.Now(), []storageversion.Process{serverA, serverB}, true)
		}, true},
	} {
		o := newKnown(serverA)
		s, ctx := stageOf(t, o, made(nil))
		f := newFollowers(s.env, func(schema.GroupResource) {})
		if _, err := f.ask(ctx, widgets); err != nil {
			t.Fatal(err)
		}
		o.clock.Step(time.Second)
		test.change(o)
		observation := o.Observe(widgets)
		if again := f.recordOf(&observation).since.IsZero(); again != test.again {
			t.Errorf("%s: the servers are asked again: %t", name, again)
		}
	}
}

// manyDefinitions is an Observer of servers that agree, in a cluster with many CustomResourceDefinitions.
type manyDefinitions struct{ agreeing }

func (manyDefinitions) Observe(resource schema.GroupResource) storageversion.Observation {
	o := agreeing{}.Observe(resource)
	o.DefinitionCount = 900
	return o
}

// TestServersThatChangeManyHandlers has as many definitions as a server needs 90 s for. Its discovery document shows a
// new version before its handler writes it.
func TestServersThatChangeManyHandlers(t *testing.T) {
	const settle = time.Minute
	e := &environment{observer: manyDefinitions{}, clock: testingclock.NewFakeClock(noon.Add(settle + 89*time.Second))}
	e.options.SettlePeriod = settle
	f := newFollowers(e, func(schema.GroupResource) {})
	f.known.Store(widgets, &followRecord{since: noon})
	decision := f.check(made(nil), toV2)
	if want := noon.Add(settle + 90*time.Second); decision.Verdict != Wait || !decision.DecideAt.Equal(want) {
		t.Errorf("the decision is %+v, want to wait until %s", decision, want)
	}
	e.clock = testingclock.NewFakeClock(decision.DecideAt)
	if decision := f.check(made(nil), toV2); decision.Verdict != Go {
		t.Errorf("the decision is %+v", decision)
	}
}

// readerOf reads documents of a server that a test made.
func readerOf(t *testing.T, server *httptest.Server) documents.Reader {
	t.Helper()
	config := &rest.Config{Host: server.URL}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return documents.Reader{Client: client, Timeout: time.Minute}
}

// TestReportedHash asks a server that has no document of the group: an APIService is late, or was made by somebody.
func TestReportedHash(t *testing.T) {
	v1, v2 := "/apis/"+widgets.Group+"/v1", "/apis/"+widgets.Group+"/v2"
	for name, test := range map[string]struct {
		hashes  map[string]string // by document
		want    string
		wantErr string
	}{
		"the same at each version":                          {hashes: map[string]string{v1: "new", v2: "new"}, want: "new"},
		"it serves the version that is not served any more": {hashes: map[string]string{v1: "old"}, want: "old"},
		"the storage version is not served":                 {hashes: map[string]string{v2: ""}},
		"it does not know the definition":                   {wantErr: "does not serve the resource yet"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hash, served := test.hashes[r.URL.Path]
			if !served {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
				TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList"},
				APIResources: []metav1.APIResource{{Name: widgets.Resource, StorageVersionHash: hash}},
			})
		}))
		observation := storageversion.Observation{
			Resource: widgets, ServedVersions: []string{"v2"}, DefinedVersions: []string{"v1", "v2"},
		}
		got, err := reportedHash(t.Context(), readerOf(t, server), &observation)
		server.Close()
		if got != test.want || (err == nil) != (test.wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), test.wantErr) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// known is an Observer of what a Ledger knows. All servers follow every definition, unless there is a lag, and
// meanwhile happens while they are asked.
type known struct {
	Observer
	*storageversion.Ledger
	clock     *testingclock.FakeClock
	meanwhile func()
	lag, away error
}

func (o *known) Observe(resource schema.GroupResource) storageversion.Observation {
	return o.Ledger.Observe(o.clock.Now(), resource)
}

func (o *known) CheckCanAskEach() error { return o.away }

func (o *known) AskEach(context.Context, func(context.Context, documents.Reader) error) error {
	o.meanwhile()
	return o.lag
}

func (*known) CheckLeases(context.Context) error { return nil }

func (*known) ReadAggregated(context.Context, string) error { return nil }

// newKnown returns the Observer of a cluster with the given servers, which has had the definition of widgets for an
// hour.
func newKnown(servers ...storageversion.Process) *known {
	clk := testingclock.NewFakeClock(noon)
	o := &known{Ledger: storageversion.NewLedger(90 * time.Second), clock: clk, meanwhile: func() {}}
	o.SetServers(clk.Now(), servers, true)
	o.SetDefinition(clk.Now(), widgets, &storageversion.Definition{
		UID: "widgets", Generation: 5, Group: widgets.Group, Kind: "Widget", StorageVersion: "v2",
		ServedVersions: []string{"v2"}, DefinedVersions: []string{"v2"}, StoredVersions: []string{"v2"}, Established: true,
	})
	clk.Step(time.Hour)
	return o
}

var serverA, serverB = storageversion.Process{Identity: "a", Incarnation: "1"},
	storageversion.Process{Identity: "b", Incarnation: "1"}

// stageOf returns a migrator that waits for a settle period of one minute in the cluster.
func stageOf(t *testing.T, o *known, m *migrationv1alpha1.StorageVersionMigration) (*stage, context.Context) {
	t.Helper()
	s, ctx := newStage(t, m)
	s.env.observer, s.env.clock, s.env.options.SettlePeriod = o, o.clock, time.Minute
	return s, ctx
}

// TestAPIServiceThatWasInFront creates an APIService in front of a definition and deletes it. What the servers follow
// does not depend on that.
func TestAPIServiceThatWasInFront(t *testing.T) {
	o := newKnown(serverA)
	s, ctx := stageOf(t, o, made(nil))
	v2 := widgets.WithVersion("v2").GroupVersion()
	o.SetAggregated(o.clock.Now(), v2, &storageversion.AggregatedDocument{Address: "x", Failure: "503"})
	o.SetAggregated(o.clock.Now(), v2, nil)
	f := newFollowers(s.env, func(schema.GroupResource) {})
	if _, err := f.ask(ctx, widgets); err != nil {
		t.Fatal(err)
	}
	o.clock.Step(2 * time.Minute)
	if d := f.check(made(nil), toV2); d.Verdict != Go {
		t.Errorf("all servers have followed for two minutes, and the decision is %+v", d)
	}
}

// TestWhoIsLate has servers that do not follow generation 5, which was observed.
func TestWhoIsLate(t *testing.T) {
	const restored = "etcd was restored"
	const until = "The migration starts when every server has followed, and written example.com/v2, for the settle period"
	for stored, want := range map[int]string{
		5: "It does not follow the CustomResourceDefinition yet. " + until +
			". If this lasts for minutes, restart that server",
		6: "generation 6, and the manager has seen generation 5: what was read is out of date. " + until +
			". If this lasts for minutes, restart the manager (or kubectl svm run): its watch of " +
			"CustomResourceDefinitions hangs",
		4: restored,
		0: "There is no CustomResourceDefinition any more: what was read is out of date. " + until +
			". If this lasts for minutes, restart the manager",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if stored == 0 {
				writeDefinitionMissing(w)
				return
			}
			_, _ = fmt.Fprintf(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
				"metadata":{"name":%q,"uid":"widgets","generation":%d}}`, widgets, stored)
		}))
		o := newKnown(serverA)
		o.lag = errLags
		s, ctx := stageOf(t, o, made(nil))
		s.env.documents = readerOf(t, server)
		f := newFollowers(s.env, func(schema.GroupResource) {})
		_, err := f.ask(ctx, widgets)
		server.Close()
		if errors.Is(err, storageversion.ErrRestored) != (want == restored) {
			t.Errorf("generation %d is stored, and the error is %v", stored, err)
		}
		if want == restored {
			continue
		}
		if d := f.check(made(nil), toV2); d.Verdict != Wait || !strings.Contains(d.Message, want) {
			t.Errorf("generation %d is stored, and the decision is %+v", stored, d)
		}
	}
}

// writeDefinitionMissing answers that there is no definition of widgets.
func writeDefinitionMissing(w http.ResponseWriter) {
	w.WriteHeader(http.StatusNotFound)
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound",
		"details":{"group":"apiextensions.k8s.io","kind":"customresourcedefinitions","name":%q}}`, widgets)
}

// TestServerThatComesWhileServersAreAsked was not asked.
func TestServerThatComesWhileServersAreAsked(t *testing.T) {
	o := newKnown(serverA)
	s, ctx := stageOf(t, o, made(nil))
	f := newFollowers(s.env, func(schema.GroupResource) {})
	o.meanwhile = func() {
		o.clock.Step(time.Second)
		o.SetServers(o.clock.Now(), []storageversion.Process{serverA, serverB}, true)
		o.clock.Step(time.Second)
	}
	again, err := f.ask(ctx, widgets)
	if err != nil || again.IsZero() {
		t.Errorf("all are asked again at %v, and the error is %v", again, err)
	}
	o.clock.Step(2 * time.Minute)
	if d := f.check(made(nil), toV2); d.Verdict == Go {
		t.Error("the migration starts although b was never asked")
	}
}

// TestDefinitionThatServesNoVersion asks nobody who follows it: a migration waits until it is served.
func TestDefinitionThatServesNoVersion(t *testing.T) {
	o := newKnown(serverA)
	o.SetDefinition(o.clock.Now(), widgets, &storageversion.Definition{
		UID: "widgets", Generation: 6, Group: widgets.Group, Kind: "Widget", StorageVersion: "v2",
		DefinedVersions: []string{"v2"}, StoredVersions: []string{"v2"}, Established: true,
	})
	o.meanwhile = func() { t.Error("the servers are asked") }
	s, ctx := stageOf(t, o, made(nil))
	if again, err := newFollowers(s.env, func(schema.GroupResource) {}).ask(ctx, widgets); err != nil || !again.IsZero() {
		t.Errorf("the servers are asked again at %v, and the error is %v", again, err)
	}
}

// TestSchemasThatChange changes a schema while a migration runs. A server that has the earlier schema may drop fields
// that the migration is to keep, and it uses a new schema some time after it has heard of it.
func TestSchemasThatChange(t *testing.T) {
	o := newKnown(serverA)
	s, _ := stageOf(t, o, made(nil))
	begun := made(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Status.StartTime, m.Status.Target = new(metav1.NewTime(noon)), toV2.Target
	})
	generation := int64(5)
	change := func(content string, versions ...string) {
		generation++
		o.SetDefinition(o.clock.Now(), widgets, &storageversion.Definition{
			UID: "widgets", Generation: generation, Group: widgets.Group, Kind: "Widget", StorageVersion: "v2",
			ServedVersions: []string{"v2"}, DefinedVersions: versions, StoredVersions: []string{"v2"}, Established: true,
			Content: content,
		})
	}
	want := func(verdict Verdict) {
		t.Helper()
		if d := s.env.followers.check(begun, toV2); d.Verdict != verdict {
			t.Errorf("at generation %d, %v after noon: %+v", generation, o.clock.Since(noon), d)
		}
	}
	want(Go)
	change("another schema", "v2")
	want(Wait)
	o.clock.Step(2 * time.Minute)
	want(Go)
	change("fields like v1", "v1", "v2")
	want(Wait)
	o.clock.Step(59 * time.Second)
	want(Wait)
	change("fields like v1", "v1", "v2") // A generation that changes nothing of this.
	o.clock.Step(time.Second)
	want(Wait) // 0.1 s more for the handler of the definition
	o.clock.Step(time.Second)
	want(Go)
}
