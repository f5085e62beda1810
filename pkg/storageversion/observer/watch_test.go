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

package observer

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// eventually waits until check has nothing to complain about.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, wait.ForeverTestTimeout, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("still: %v", last)
	}
}

// follower records what handlers are told.
type follower struct {
	mu    sync.Mutex
	calls []string
	stop  func()
}

func startFollower(t *testing.T, s *fakeServer, clk clock.WithTicker) *follower {
	t.Helper()
	config := s.config()
	config.QPS = -1
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := newSlimClient(config, httpClient, definitionKind.GroupVersion())
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		follow(ctx, clk, source{client: client, resource: "customresourcedefinitions"}, handlers[*definition]{
			replace: func(all []*definition) {
				names := []string{}
				for _, d := range all {
					names = append(names, d.Metadata.Name)
				}
				slices.Sort(names)
				f.record("replace " + strings.Join(names, ","))
			},
			set:    func(d *definition) { f.record("set " + d.Metadata.Name) },
			delete: func(d *definition) { f.record("delete " + d.Metadata.Name) },
			failed: func(err error) {
				if apierrors.IsNotFound(err) {
					f.record("not found")
				}
			},
		})
	})
	f.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		httpClient.CloseIdleConnections()
	})
	t.Cleanup(f.stop)
	return f
}

func (f *follower) record(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

// saw wants just these calls, eventually, since it was asked last.
func (f *follower) saw(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.calls, want) {
			return fmt.Errorf("calls %q, want %q", f.calls, want)
		}
		f.calls = nil
		return nil
	})
}

func eachKindOfList(t *testing.T, test func(t *testing.T, s *fakeServer, c *collection)) {
	for name, streams := range map[string]bool{"streamed lists": true, "paged lists": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			c := s.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
			c.streams = streams
			s.change(func() { c.put("a", object{}) })
			test(t, s, c)
		})
	}
}

func TestWatchesMissNothing(t *testing.T) {
	eachKindOfList(t, func(t *testing.T, s *fakeServer, c *collection) {
		f := startFollower(t, s, clock.RealClock{})
		f.saw(t, "replace a")
		s.change(func() { c.put("b", object{}); c.put("a", object{}); c.remove("b") })
		f.saw(t, "set b", "set a", "delete b")

		// The connection breaks, and the server is away for a while, before and behind something that goes on.
		for _, code := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInternalServerError} {
			watches := s.count(definitionsPath + "?watch")
			s.change(func() { s.failing["/"] = code })
			s.CloseClientConnections()
			eventually(t, func() error {
				if s.count(definitionsPath+"?watch") == watches {
					return fmt.Errorf("nobody tries to watch again")
				}
				return nil
			})
			s.change(func() { c.put("b", object{}); c.put("b", object{}); c.remove("b"); delete(s.failing, "/") })
			f.saw(t, "set b", "set b", "delete b")
		}
	})
}

func TestWhatCannotBeResumedIsListed(t *testing.T) {
	eachKindOfList(t, func(t *testing.T, s *fakeServer, c *collection) {
		f := startFollower(t, s, clock.RealClock{})
		f.saw(t, "replace a")
		s.change(func() { s.failing["/"] = http.StatusServiceUnavailable })
		s.CloseClientConnections()
		s.change(func() { c.put("b", object{}); c.remove("a"); c.compacted = c.version; delete(s.failing, "/") })
		f.saw(t, "replace b")
		s.change(func() { c.put("c", object{}) })
		f.saw(t, "set c")
	})
}

func TestListsComeInPages(t *testing.T) {
	s := newFakeServer(t)
	c := s.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
	var want []string
	s.change(func() {
		for i := range 2*pageSize + 1 {
			name := fmt.Sprintf("%04d", i)
			c.put(name, object{})
			want = append(want, name)
		}
	})
	f := startFollower(t, s, clock.RealClock{})
	f.saw(t, "replace "+strings.Join(want, ","))
	if got := s.count(definitionsPath); got != 3 {
		t.Errorf("%d requests for three pages", got)
	}
}

// TestUnservedResourceIsWaitedFor with a clock that stands still: between two tries nothing is asked.
func TestUnservedResourceIsWaitedFor(t *testing.T) {
	s := newFakeServer(t)
	clk := clocktesting.NewFakeClock(noon)
	f := startFollower(t, s, clk)
	for try := 1; try <= 3; try++ {
		f.saw(t, "not found")
		eventually(t, func() error {
			if !clk.HasWaiters() {
				return fmt.Errorf("it does not wait")
			}
			return nil
		})
		// One request for a streamed list and one for a list in pages.
		if got := s.count(definitionsPath) + s.count(definitionsPath+"?watch"); got != 2*try {
			t.Errorf("%d requests in %d tries", got, try)
		}
		clk.Step(watchBackoff.Cap * 2)
	}
}

// TestBrokenWatchesAreNoHotLoop with a clock that stands still: a watch that breaks as soon as it began is not begun again.
func TestBrokenWatchesAreNoHotLoop(t *testing.T) {
	s := newFakeServer(t)
	c := s.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
	s.change(func() { c.put("a", object{}); c.broken = true })
	clk := clocktesting.NewFakeClock(noon)
	f := startFollower(t, s, clk)
	f.saw(t, "replace a")
	for watches := 1; watches <= 3; watches++ {
		eventually(t, func() error {
			// The first is the attempt to have the list streamed.
			if got := s.count(definitionsPath + "?watch"); got != 1+watches || !clk.HasWaiters() {
				return fmt.Errorf("%d watches instead of %d, or it does not wait", got-1, watches)
			}
			return nil
		})
		clk.Step(watchInterval)
	}
	f.saw(t)
}

func TestFollowingEnds(t *testing.T) {
	hanging := func(s *fakeServer) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	}
	away := func(s *fakeServer) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { fail(w, http.StatusServiceUnavailable, "") }
	}
	watched := func(s *fakeServer) http.HandlerFunc { return s.ServeHTTP }
	for name, handler := range map[string]func(*fakeServer) http.HandlerFunc{"hanging": hanging, "away": away, "watched": watched} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			s := newFakeServer(t)
			s.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
			asked := make(chan struct{}, 1000)
			handle := handler(s)
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				handle(w, r)
			})
			f := startFollower(t, s, clock.RealClock{})
			<-asked
			ended := make(chan struct{})
			go func() { defer close(ended); f.stop() }()
			select {
			case <-ended:
			case <-time.After(wait.ForeverTestTimeout):
				t.Fatal("it does not end")
			}
			s.CloseClientConnections()
			s.Close()
			goleak.VerifyNone(t, before)
		})
	}
}

func TestWhoAnswered(t *testing.T) {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	future := apierrors.NewTimeoutError("Too large resource version", 1)
	future.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"refused connection":                {fmt.Errorf("connection refused"), true},
		"a balancer without servers":        {apierrors.NewGenericServerResponse(503, "get", leases, "", "", 0, true), true},
		"a server that has enough to do":    {apierrors.NewTooManyRequests("later", 1), true},
		"a server that knows less than we":  {future, false},
		"an old place":                      {apierrors.NewResourceExpired("compacted"), false},
		"a server that does not serve that": {apierrors.NewNotFound(leases, ""), false},
		"a server that refuses":             {apierrors.NewForbidden(leases, "", fmt.Errorf("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := unanswered(test.err); got != test.want {
				t.Errorf("unanswered: %t", got)
			}
		})
	}
}
