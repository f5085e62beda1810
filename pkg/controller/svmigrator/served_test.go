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
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// notServed observes that no server has a storage version of any resource.
type notServed struct {
	Observer
	class    storageversion.Class
	presence storageversion.Presence
}

func (o notServed) Observe(resource schema.GroupResource) storageversion.Observation {
	return storageversion.Observation{Resource: resource, Class: o.class, Presence: o.presence}
}

// TestResourceWithoutStorageVersion is served, but nothing shows that it is stored. Its APIService may be replaced just
// now.
func TestResourceWithoutStorageVersion(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/example.com" {
			fmt.Fprint(w, `{"kind":"APIGroup","apiVersion":"v1","name":"example.com",`+
				`"versions":[{"groupVersion":"example.com/v1","version":"v1"}]}`)
			return
		}
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1",`+
			`"resources":[{"name":"flunders","kind":"Flunder","verbs":["list","patch"]}]}`)
	}))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	c := &Controller{env: &environment{
		clock:     testingclock.NewFakeClock(now),
		documents: documents.Reader{Client: kube.Discovery().RESTClient(), Timeout: readTimeout},
	}}
	began := metav1.NewTime(now.Add(-time.Hour))
	away := waitDecision(migrationv1alpha1.MigrationReasonResourceNotServed, "it is away")
	for name, tc := range map[string]struct {
		change func(*migrationv1alpha1.StorageVersionMigration)
		want   Verdict
		unread bool
	}{
		"a person's migration": {change: func(*migrationv1alpha1.StorageVersionMigration) {}, want: Fail},
		"one that has started": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.StartTime, m.Status.Target = &began, boundTo(3)
		}, Wait, false},
		"one that has started, at a version that is not served any more": {
			func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Status.StartTime, m.Status.Target = &began, boundTo(3)
				m.Spec.Resource.Version = "v0"
			}, Wait, false},
		"one that has started, of what is not there": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.StartTime, m.Status.Target = &began, boundTo(3)
			m.Spec.Resource.Resource = "new"
		}, Wait, false},
		"one that has started, and says for an hour that nobody serves the resource": {
			func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Status.StartTime, m.Status.Target = &began, boundTo(3)
				m.Spec.Resource.Resource = "new"
				waiting(away)(&m.Status, began.Time)
			}, Fail, false},
		"one of the trigger": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Spec.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: "abc=", Epoch: new(int64)}
		}, Wait, false},
		"one of the trigger, before servers were rolled back": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Spec.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: "abc=", Epoch: new(int64)}
			m.Spec.Resource.Resource = "new"
		}, Wait, false},
		"a person's migration of what is not there": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Spec.Resource.Resource = "new"
		}, Fail, false},
		"a person's migration of what only a server may have that was not read": {
			func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Spec.Resource.Resource = "new"
			}, Wait, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: began}}
			m.Spec.Resource.Group, m.Spec.Resource.Resource = "example.com", "flunders"
			tc.change(m)
			c.env.observer = notServed{presence: storageversion.NotServed}
			if tc.unread {
				c.env.observer = notServed{presence: storageversion.PresenceUnknown}
			}
			d := c.failIfNotServed(t.Context(), m, away)
			if d.Verdict != tc.want {
				t.Errorf("%s, %s: %s; want %s", d.Verdict, d.Reason, d.Message, tc.want)
			}
			earlier := away
			earlier.DecideAt = now.Add(time.Second)
			if d = c.failIfNotServed(t.Context(), m, earlier); d.Verdict == Wait && !d.DecideAt.Equal(earlier.DecideAt) {
				t.Errorf("it is decided on again at %v, want %v", d.DecideAt, earlier.DecideAt)
			}
			d = c.failIfNotServed(t.Context(), m, waitDecision(migrationv1alpha1.MigrationReasonSuspended, "it is suspended"))
			if d.Verdict != Wait {
				t.Errorf("while it is suspended %s, %s: %s", d.Verdict, d.Reason, d.Message)
			}
		})
	}
}

// TestNotBuiltInAndNotObserved has a resource that is served without the verbs that rewrites need, while a server was
// not read. If that may be an aggregated one, it may hang, and nothing is asked.
func TestNotBuiltInAndNotObserved(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.Count(r.URL.Path, "/") == 2 {
			fmt.Fprint(w, `{"kind":"APIGroup","versions":[{"version":"v1"}]}`)
			return
		}
		fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"widgets","verbs":["create"]}]}`)
	}))
	t.Cleanup(server.Close)
	for _, test := range []struct {
		group, version string
		want           Verdict
	}{
		{"apps", "", Fail},
		{"apps", "v2", Wait}, // The server that was not read may be of a newer release.
		{"example.com", "", Wait},
	} {
		s, ctx := newStage(t)
		s.env.observer, s.env.documents = notServed{presence: storageversion.PresenceUnknown}, readerOf(t, server)
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Spec.Resource.Group, m.Spec.Resource.Version = test.group, test.version
		})
		if d := s.failIfNotServed(ctx, m, notAgreed("a server was not read")); d.Verdict != test.want {
			t.Errorf("%+v: %+v", test, d)
		}
	}
}

// TestServedButNotObserved has a resource that a server serves, and of which it is not known whether it is stored. It
// wants no request while a server was not read: that one may hang.
func TestServedButNotObserved(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/example.com":
			fmt.Fprint(w, `{"kind":"APIGroup","versions":[{"version":"v2"},{"version":"v1"}]}`)
		case "/apis/example.com/v1":
			fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"widgets","verbs":["list","patch"]}]}`)
		default: // Another server of the group is away.
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	for name, o := range map[string]notServed{
		"another server was not read":               {presence: storageversion.PresenceUnknown},
		"a definition that serves nothing any more": {presence: storageversion.NotServed, class: storageversion.Custom},
	} {
		s, ctx := newStage(t)
		s.env.observer, s.env.documents = o, readerOf(t, server)
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			m.Spec.Resource.Version = "v1"
		})
		d := s.failIfNotServed(ctx, m, notAgreed("a server was not read"))
		if d.Verdict != Wait || d.DecideAt.IsZero() {
			t.Errorf("%s: %+v", name, d)
		}
		if asked := requests.Swap(0) > 0; asked != (o.presence == storageversion.NotServed) {
			t.Errorf("%s: the API server was asked: %t", name, asked)
		}
		if found, err := findServed(ctx, s.env.documents, s.env.requested(m), ""); err != nil || found.Version != "v1" {
			t.Errorf("%s: it is found at %+v, and the error is %v", name, found, err)
		}
		m.Spec.Resource.Version = "v3"
		if d := s.failIfNotServed(ctx, m, notAgreed("a server was not read")); d.Verdict != Wait {
			t.Errorf("%s, and v2 cannot be read: %+v", name, d)
		}
		requests.Store(0)
	}
}

// TestDefinitionThatIsBeingDeleted wants a custom resource to count as one that may be gone soon, and not as one that
// nobody can migrate: API servers list it without the verbs that write.
func TestDefinitionThatIsBeingDeleted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/example.com" {
			fmt.Fprint(w, `{"kind":"APIGroup","versions":[{"version":"v1"}]}`)
			return
		}
		fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"widgets","verbs":["delete","list"]}]}`)
	}))
	t.Cleanup(server.Close)
	for class, permanent := range map[storageversion.Class]bool{
		storageversion.Custom: false, storageversion.Aggregated: true,
	} {
		resource := rewrite.Resource{GroupVersionResource: widgets.WithVersion(""), Class: class}
		_, err := findServed(t.Context(), readerOf(t, server), resource, "")
		if _, is := errors.AsType[*rewrite.PermanentError](err); err == nil || is != permanent {
			t.Errorf("%s: the error %v ends the migration: %t, want %t", class, err, is, permanent)
		}
	}
}

// TestVersionOfAnAggregatedResource wants objects of an aggregated server to be written at the storage version,
// whatever version somebody asks for: a version may lack fields of another one.
func TestVersionOfAnAggregatedResource(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/example.com":
			fmt.Fprint(w, `{"kind":"APIGroup","versions":[{"version":"v1alpha1"},{"version":"v1"}]}`)
		case "/apis/example.com/v1alpha1", "/apis/example.com/v1":
			fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"widgets","verbs":["list","patch"]}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	for stored, want := range map[string]string{"v1": "v1", "v2": "v1alpha1", "": "v1alpha1"} {
		asked := rewrite.Resource{
			GroupVersionResource: widgets.WithVersion("v1alpha1"), Class: storageversion.Aggregated,
		}
		found, err := FindToRewrite(t.Context(), readerOf(t, server), asked, stored)
		if err != nil || found.Version != want {
			t.Errorf("objects are stored at %q: they are written at %v, want %q; %v", stored, found, want, err)
		}
	}
}

// TestVersionThatWasWithdrawn wants a migration of the trigger to find custom resources whatever version it names.
func TestVersionThatWasWithdrawn(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*migrationv1alpha1.StorageVersionMigration)
		want   string
	}{
		"of a person":    {func(*migrationv1alpha1.StorageVersionMigration) {}, "v1"},
		"of the trigger": {func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Target = boundTo(3) }, ""},
		"that has begun": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.StartTime, m.Status.Target = new(metav1.NewTime(noon)), boundTo(3)
		}, ""},
	} {
		m := made(test.change)
		m.Spec.Resource.Version = "v1"
		if got := (&environment{observer: agreeing{}}).requested(m).Version; got != test.want {
			t.Errorf("a migration %s asks for version %q, want %q", name, got, test.want)
		}
	}
}

// TestOptionToUseTheStatus has a resource whose status subresource can be patched.
func TestOptionToUseTheStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/example.com" {
			fmt.Fprint(w, `{"kind":"APIGroup","versions":[{"version":"v2"}]}`)
			return
		}
		fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"widgets","verbs":["list","patch"]},`+
			`{"name":"widgets/status","verbs":["patch"]}]}`)
	}))
	t.Cleanup(server.Close)
	for _, want := range []bool{true, false} {
		s, ctx := newStage(t)
		s.env.observer, s.env.documents, s.env.options.UseStatus = notServed{}, readerOf(t, server), want
		r := s.run(made(nil))
		if err := r.locate(ctx, boundTo(3)); err != nil || r.served.MayUseStatus != want {
			t.Errorf("the status may be used: %v, want %v, and the error is %v", r.served.MayUseStatus, want, err)
		}
	}
}

// TestCustomResourcesAreWrittenAtTheirStorageVersion has a target name another version: somebody made it up, or the
// definition has changed since.
func TestCustomResourcesAreWrittenAtTheirStorageVersion(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/example.com":
			fmt.Fprint(w, `{"kind":"APIGroup","versions":[{"version":"v1"},{"version":"v2"}]}`)
		case documents.DefinitionPath(widgets):
			fmt.Fprint(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","spec":{"versions":[`+
				`{"name":"v1","served":true},{"name":"v2","served":true,"storage":true}]}}`)
		default:
			fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"widgets","verbs":["list","patch"]}]}`)
		}
	}))
	t.Cleanup(server.Close)
	s, ctx := newStage(t)
	s.env.observer, s.env.documents = agreeing{}, readerOf(t, server)
	made := made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Target = boundTo(3) })
	made.Spec.Target.EncodingVersion = "example.com/v1"
	r := s.run(made)
	if err := r.locate(ctx, made.Spec.Target); err != nil || r.served.Version != "v2" {
		t.Errorf("objects are written at %q, and the error is %v", r.served.Version, err)
	}
	state := stateAt(3, v2, metav1.ConditionTrue)
	d := Decide(Input{Migration: made, Observation: observed(written(9, 2, v2)), State: state, Settle: period, Now: noon})
	if d.Verdict != Go || d.Target.EncodingVersion != "example.com/v2" {
		t.Errorf("got %+v", d)
	}
}
