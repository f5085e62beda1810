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

package storageversiongc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// TestOneServer shares a control plane between what needs only one living server. The others are a Lease and an entry,
// or only an entry. No other test runs at the time of the first part.
func TestOneServer(t *testing.T) {
	cp := onlyServer(t)
	t.Run("a controller leaves nothing behind", func(t *testing.T) { leavesNothingBehind(t, cp) })
	t.Parallel()
	t.Run("lease reads that fail remove nothing", func(t *testing.T) { leaseReadsThatFail(t, cp) })
	t.Run("both kinds of garbage go, in spite of races", func(t *testing.T) { bothKindsOfGarbage(t, cp) })
	t.Run("an API server that is away is left in peace", func(t *testing.T) { serverAway(t, cp) })
}

func answer(code int, contentType, body string) hook {
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !readsLease(r) {
			return next.RoundTrip(r)
		}
		return &http.Response{
			StatusCode: code,
			Header:     http.Header{"Content-Type": {contentType}},
			Body:       io.NopCloser(bytes.NewBufferString(body)),
			Request:    r,
		}, nil
	}
}

var failures = map[string]hook{
	"internal error": answer(http.StatusInternalServerError, "text/plain", "etcdserver: leader changed"),
	"forbidden": answer(http.StatusForbidden, "application/json",
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`),
	"too many requests": answer(http.StatusTooManyRequests, "text/plain",
		"Too many requests, please try again later."),
	"not found by a proxy, which knows of no lease": answer(http.StatusNotFound, "text/plain", "404 page not found"),
	"not found, but what?": answer(http.StatusNotFound, "application/json",
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,`+
			`"details":{"name":"kube-system","kind":"namespaces"}}`),
	"connection reset": func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !readsLease(r) {
			return next.RoundTrip(r)
		}
		return nil, syscall.ECONNRESET
	},
	"no answer": func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !readsLease(r) {
			return next.RoundTrip(r)
		}
		<-r.Context().Done()
		return nil, r.Context().Err()
	},
}

// flickering answers every third reading with the truth, so that many single readings say that the Lease is gone.
func flickering() hook {
	readings := 0
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if readsLease(r) {
			if readings++; readings%3 != 0 {
				return failures["internal error"](r, next)
			}
		}
		return next.RoundTrip(r)
	}
}

func leaseReadsThatFail(t *testing.T, cp *controlplane.ControlPlane) {
	client := newClient(t, cp.AdminConfig())
	const name = "gc.example.com.unreadable"
	mustPublish(t, client, name,
		server{cp.Servers()[0].Identity(), "gc.example.com/v1"}, server{"gone", "gc.example.com/v2"})
	w := startWitness(t, client)

	began := time.Now()
	collectors := map[string]*collector{
		"flickering": startCollector(t, cp.AdminConfig(), collectorOptions{hook: flickering()}),
	}
	for failure, h := range failures {
		collectors[failure] = startCollector(t, cp.AdminConfig(), collectorOptions{hook: h})
	}
	for failure, c := range collectors {
		c.awaitLeaseReads(t, failure, 1)
	}
	framework.During(t, grace+5*time.Second, func(context.Context) error {
		if n := w.changes(name); n > 0 {
			return fmt.Errorf("the object changed %d times", n)
		}
		return nil
	})
	for failure, c := range collectors {
		c.awaitLeaseReads(t, failure, 2)
		c.stop()
		// The backoff is 1, 2, 4, 8, 15 s; client-go repeats some requests by itself.
		most := int(time.Since(began).Seconds())
		if lists, leases := c.count("GET storageversion"), c.count("GET lease"); lists > most || leases > 2*most {
			t.Errorf("%s: %d lists and %d readings of leases", failure, lists, leases)
		}
	}
	w.running(t)
}

// race is something that happens once, right before a write of the controller gets through.
type race struct {
	object string
	when   func(*http.Request) bool
	do     func(ctx context.Context, name string) error
	done   atomic.Bool
}

func removes(r *http.Request) bool { return !putsMarker(r) }

func races(t *testing.T, all []*race) hook {
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		for _, one := range all {
			if one.done.Load() || !writes(r, one.object) || !one.when(r) {
				continue
			}
			one.done.Store(true)
			if err := one.do(r.Context(), one.object); err != nil {
				t.Error(err)
			}
			response, err := next.RoundTrip(r)
			if err == nil && response.StatusCode != http.StatusConflict {
				t.Errorf("%s: the write that lost its race was answered with %s", one.object, response.Status)
			}
			return response, err
		}
		return next.RoundTrip(r)
	}
}

// comesBack is a server that starts again under its old identity: a Lease, then the same entry as before.
func comesBack(client kubernetes.Interface, s server) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		if err := createLease(ctx, client, s.id, nil); err != nil {
			return err
		}
		before, err := client.InternalV1alpha1().StorageVersions().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		after, err := publish(ctx, client, name, s)
		if err == nil && after.ResourceVersion == before.ResourceVersion {
			err = fmt.Errorf("%s: the publication changed nothing, so no precondition can notice it", name)
		}
		return err
	}
}

const (
	v1, v2 = "gc.example.com/v1", "gc.example.com/v2"
	prefix = "gc.example.com."
)

var (
	gone      = server{"gone", v2}
	gone2     = server{"gone-2", v1}
	nobody    = server{"nobody", v1}
	foreign   = server{"an-aggregated-server", v1} // its Lease has no label, so no informer of ours sees it
	racer     = server{"racer", v2}
	back      = server{"back", v1}
	backAlone = server{"back-alone", v1}
	blinking  = server{"blinking", v1}
)

// garbageCase is one object, named by what it is about.
type garbageCase struct {
	name string
	// servers have published when the controller starts. None is an object that was created and not filled.
	servers []server
	// late have published 4 s later.
	late []server
	// race is lost by the controller once.
	race *race
	// want is what remains; nil if nothing does.
	want *status
}

func garbageCases(client kubernetes.Interface, living server) []garbageCase {
	wins := func(ctx context.Context, name string) error {
		_, err := publish(ctx, client, name, racer)
		return err
	}
	return []garbageCase{
		{name: "stale", servers: []server{gone, living}, want: &status{[]string{living.id}, v1, agreed}},
		{name: "agreement", servers: []server{living, gone2}, want: &status{[]string{living.id}, v1, agreed}},
		{name: "onlystale", servers: []server{gone, gone2}},
		{name: "foreign", servers: []server{gone, foreign, gone2}, want: &status{[]string{foreign.id}, v1, agreed}},
		{name: "living", servers: []server{living, foreign}, want: &status{[]string{living.id, foreign.id}, v1, agreed}},
		{
			name:    "disagreement",
			servers: []server{gone2, living, racer},
			want:    &status{[]string{living.id, racer.id}, "", disagreed},
		},
		{name: "blinking", servers: []server{blinking}, want: &status{[]string{blinking.id}, v1, agreed}},
		{name: "byhand", servers: []server{living}, late: []server{nobody}, want: &status{[]string{living.id}, v1, agreed}},
		{name: "empty"},
		{name: "slowlyfilled", late: []server{living}, want: &status{[]string{living.id}, v1, agreed}},
		{name: "racedmarker", servers: []server{gone, living}, want: &status{[]string{living.id, racer.id}, "", disagreed},
			race: &race{when: putsMarker, do: wins}},
		{name: "racedupdate", servers: []server{gone, living}, want: &status{[]string{living.id, racer.id}, "", disagreed},
			race: &race{when: removes, do: wins}},
		{name: "raceddelete", servers: []server{gone2}, want: &status{[]string{racer.id}, v2, agreed},
			race: &race{when: removes, do: wins}},
		{name: "racedempty", want: &status{[]string{racer.id}, v2, agreed},
			race: &race{when: removes, do: wins}},
		{name: "backwithothers", servers: []server{back, living}, want: &status{[]string{back.id, living.id}, v1, agreed},
			race: &race{when: removes, do: comesBack(client, back)}},
		{name: "backalone", servers: []server{backAlone}, want: &status{[]string{backAlone.id}, v1, agreed},
			race: &race{when: removes, do: comesBack(client, backAlone)}},
	}
}

func bothKindsOfGarbage(t *testing.T, cp *controlplane.ControlPlane) {
	client := newClient(t, cp.AdminConfig())
	living := server{cp.Servers()[0].Identity(), v1}
	cases := garbageCases(client, living)
	for _, s := range []server{foreign, racer} {
		mustCreateLease(t, client, s, nil)
	}
	// The one Lease of these that the informer sees, so that its deletion is an event.
	identity := map[string]string{identityLabel: "aggregated"}
	mustCreateLease(t, client, blinking, identity)
	var all []*race
	for _, c := range cases {
		mustPrepare(t, client, c)
		if c.race != nil {
			c.race.object = prefix + c.name
			all = append(all, c.race)
		}
	}

	w := startWitness(t, client)
	startCollector(t, cp.AdminConfig(), collectorOptions{hook: races(t, all)})
	deleted := time.Now()
	if err := deleteLease(t.Context(), client, blinking.id); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(deleted.Add(4 * time.Second)))
	for _, c := range cases {
		if len(c.late) > 0 {
			mustPublish(t, client, prefix+c.name, c.late...)
		}
	}
	// A living server puts its Lease back 10.4 s after its deletion at the latest.
	time.Sleep(time.Until(deleted.Add(10400 * time.Millisecond)))
	mustCreateLease(t, client, blinking, identity)
	survivors := []server{living, foreign, racer, back, backAlone}
	if time.Since(deleted) < almostGrace {
		survivors = append(survivors, blinking)
	} else { // Nobody knows whether the object is still there.
		cases = slices.DeleteFunc(cases, func(c garbageCase) bool { return c.name == blinking.id })
	}

	framework.Eventually(t, soon, func(ctx context.Context) error { return compare(ctx, client, cases) })
	for _, one := range all {
		if !one.done.Load() {
			t.Errorf("%s was never raced for", one.object)
		}
	}
	for _, s := range survivors {
		if w.neverLost(t, s.id) == 0 {
			t.Errorf("%s is in no object", s.id)
		}
	}
	// They are counted after the API server has answered.
	framework.Eventually(t, soon, func(context.Context) error {
		return errors.Join(
			checkRise(t, "objects_deleted_total", "stale_entries", 0, 1),
			checkRise(t, "objects_deleted_total", "no_entries", 0, 1))
	})
}

// checkRise allows for more: other tests count too, and a lost race is tried again. Unit tests count exactly.
func checkRise(t *testing.T, name, labelValue string, before, atLeast float64) error {
	t.Helper()
	if got := metric(t, name, labelValue) - before; got < atLeast {
		return fmt.Errorf("%s{%s} rose by %v, want %v at least", name, labelValue, got, atLeast)
	}
	return nil
}

func mustPrepare(t *testing.T, client kubernetes.Interface, c garbageCase) {
	t.Helper()
	if len(c.servers) > 0 {
		mustPublish(t, client, prefix+c.name, c.servers...)
		return
	}
	object := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: prefix + c.name}}
	_, err := client.InternalV1alpha1().StorageVersions().Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func compare(ctx context.Context, client kubernetes.Interface, cases []garbageCase) error {
	list, err := client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	stored := map[string]status{}
	for i := range list.Items {
		stored[list.Items[i].Name] = statusOf(&list.Items[i])
	}
	want, got := map[string]status{}, map[string]status{}
	for _, c := range cases {
		if c.want != nil {
			want[c.name] = *c.want
		}
		if s, ok := stored[prefix+c.name]; ok {
			got[c.name] = s
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("storage versions (-want +got):\n%s", diff)
	}
	return nil
}

func serverAway(t *testing.T, cp *controlplane.ControlPlane) {
	client := newClient(t, cp.AdminConfig())
	const name = "gc.example.com.away"
	mustPublish(t, client, name, server{"away", "gc.example.com/v1"})
	c := startCollector(t, cp.AdminConfig(), collectorOptions{})
	c.awaitLeaseReads(t, "away", 1)

	if err := cp.Servers()[0].Kill(); err != nil {
		t.Fatal(err)
	}
	const away = 8 * time.Second
	before, killed := c.total(), time.Now()
	time.Sleep(time.Until(killed.Add(away)))
	sent, took := c.total()-before, time.Since(killed)
	if most := 4 + int(took.Seconds()); sent > most {
		t.Errorf("%d requests to an API server that was away for %v, want %d at most", sent, took, most)
	}
	if err := cp.Servers()[0].Restart(nil); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		object, err := client.InternalV1alpha1().StorageVersions().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("still there: %v", statusOf(object)))
	})
}
