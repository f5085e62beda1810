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
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// follower records what handlers are told.
type follower struct {
	mu    sync.Mutex
	calls []string
	stop  func()
}

func startFollower(t *testing.T, s *fakeServer, clk clock.WithTicker, change ...func(*watchedList)) *follower {
	t.Helper()
	config := s.config()
	config.QPS = -1
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := documents.NewClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	f, from := &follower{}, newWatchedList(client, documents.DefinitionsPath, "")
	from.clock = clk
	for _, change := range change {
		change(from)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		follow(ctx, from, f.apply, func(err error) {
			if documents.IsNotServed(err) {
				f.record("not served")
			}
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

func (f *follower) apply(n delta[*documents.Definition]) {
	names := []string{}
	for _, d := range n.set {
		names = append(names, d.Metadata.Name)
	}
	slices.Sort(names)
	switch {
	case n.listed:
		f.record(strings.Join(append([]string{"list " + strings.Join(names, ",")}, n.gone...), " without "))
	case len(n.gone) > 0:
		f.record("gone " + n.gone[0])
	case len(names) > 0:
		f.record("set " + names[0])
	}
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

// waits returns when something waits for the clock.
func waits(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	eventually(t, func() error {
		if !clk.HasWaiters() {
			return fmt.Errorf("it does not wait")
		}
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
		f.saw(t, "list a")
		s.change(func() { c.put("b", object{}); c.put("a", object{}); c.remove("b") })
		f.saw(t, "set b", "set a", "gone b")

		// The connection breaks, and the server is away for a while, before and behind something that goes on.
		for _, code := range []int{503, 429, 500} {
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
			f.saw(t, "set b", "set b", "gone b")
		}
	})
}

func TestWhatCannotBeResumedIsListed(t *testing.T) {
	eachKindOfList(t, func(t *testing.T, s *fakeServer, c *collection) {
		f := startFollower(t, s, clock.RealClock{})
		f.saw(t, "list a")
		s.change(func() { s.failing["/"] = http.StatusServiceUnavailable })
		s.CloseClientConnections()
		s.change(func() { c.put("b", object{}); c.remove("a"); c.compacted = c.version; delete(s.failing, "/") })
		f.saw(t, "list b without a")
		s.change(func() { c.put("c", object{}) })
		f.saw(t, "set c")
	})
}

// TestAfterAnEarlierListEverythingIsListed has an API server that shows an earlier revision once. Perhaps etcd was
// restored, and has overtaken the revision that was seen: a watch from there would miss what came before.
func TestAfterAnEarlierListEverythingIsListed(t *testing.T) {
	eachKindOfList(t, func(t *testing.T, s *fakeServer, c *collection) {
		c.version = 10
		f := startFollower(t, s, clock.RealClock{}, func(from *watchedList) { from.restored = func(error, time.Time) {} })
		f.saw(t, "list a")
		s.change(func() { c.put("b", object{}) })
		f.saw(t, "set b") // The watch has begun.
		lists := s.count(definitionsPath)
		s.change(func() { c.version-- })
		s.CloseClientConnections()
		eventually(t, func() error {
			if s.count(definitionsPath) < lists+2 { // The first one has been answered when the second one begins.
				return errors.New("it was not listed")
			}
			return nil
		})
		s.change(func() { c.version++; c.put("c", object{}) })
		f.saw(t, "list a,b,c")
	})
}

// TestEarlierListsAreARestore has lists that show an earlier revision. An API server may be late for some seconds.
func TestEarlierListsAreARestore(t *testing.T) {
	var told error
	clk := clocktesting.NewFakeClock(noon)
	s := newWatchedList(nil, "definitions", "")
	s.clock, s.restored = clk, func(err error, _ time.Time) { told = err }
	lists := &store[*documents.Definition]{list: s, apply: func(delta[*documents.Definition]) {}}
	for _, err := range []error{lists.Replace(nil, "10"), lists.Bookmark("20"), lists.Replace(nil, "20")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, list := range []struct {
		after    time.Duration
		watched  string
		revision string
		want     error
	}{
		{after: 0, revision: "19", want: storageversion.ErrEarlier},
		{after: restoredGap, revision: "19", want: storageversion.ErrEarlier},
		{after: restoredGap - time.Second, revision: "20", want: nil},
		{after: 2 * time.Second, revision: "19", want: storageversion.ErrEarlier},
		{after: restoredGap, revision: "19", want: storageversion.ErrEarlier},
		{after: restoredGap, watched: "21", revision: "20", want: storageversion.ErrEarlier},
		{after: restoredGap, revision: "20", want: storageversion.ErrEarlier},
		{after: restoredGap + time.Second, revision: "20", want: storageversion.ErrEarlier},
		{after: restoredGap, revision: "20", want: storageversion.ErrEarlier},
		{after: restoredGap, revision: "20", want: storageversion.ErrRestored},
	} {
		clk.Step(list.after)
		if list.watched != "" {
			_ = lists.Bookmark(list.watched)
		}
		err := lists.Replace(nil, list.revision)
		if !errors.Is(err, list.want) || !errors.Is(told, list.want) {
			t.Errorf("%+v: the error is %v, and told was %v", list, err, told)
		}
		told = nil
	}
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
	f.saw(t, "list "+strings.Join(want, ","))
	if got := s.count(definitionsPath); got != 3 {
		t.Errorf("%d requests for three pages", got)
	}
}

// TestUnservedResourceIsWaitedFor has a clock that stands still: between two tries nothing is asked.
func TestUnservedResourceIsWaitedFor(t *testing.T) {
	s := newFakeServer(t)
	clk := clocktesting.NewFakeClock(noon)
	f := startFollower(t, s, clk)
	for try := 1; try <= 3; try++ {
		f.saw(t, "not served")
		waits(t, clk)
		// One request for a streamed list and one for a list in pages.
		if got := s.count(definitionsPath) + s.count(definitionsPath+"?watch"); got != 2*try {
			t.Errorf("%d requests in %d tries", got, try)
		}
		clk.Step(watchBackoff.Cap * 2)
	}
}

// TestBrokenWatchesAreNoHotLoop has a clock that stands still: after a watch that breaks at once nothing is asked.
func TestBrokenWatchesAreNoHotLoop(t *testing.T) {
	s := newFakeServer(t)
	c := s.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
	s.change(func() { c.put("a", object{}); c.broken = true })
	clk := clocktesting.NewFakeClock(noon)
	f := startFollower(t, s, clk)
	for lists := 1; lists <= 12; lists++ {
		f.saw(t, "list a")
		waits(t, clk)
		if got := s.count(definitionsPath); got != lists {
			t.Errorf("%d lists, want %d", got, lists)
		}
		if lists == 11 { // The last two are a minute apart.
			if clk.Step(listBackoff.Cap / 2); !clk.HasWaiters() {
				t.Error("it lists again after half a minute")
			}
		}
		clk.Step(listBackoff.Cap * 2)
	}
}

func TestFollowingEnds(t *testing.T) {
	for name, handle := range map[string]func(*fakeServer, http.ResponseWriter, *http.Request){
		"hanging": func(_ *fakeServer, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"away": func(_ *fakeServer, w http.ResponseWriter, _ *http.Request) {
			fail(w, http.StatusServiceUnavailable, "")
		},
		"watched": (*fakeServer).ServeHTTP,
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			s := newFakeServer(t)
			s.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
			asked := make(chan struct{}, 1000)
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				handle(s, w, r)
			})
			f := startFollower(t, s, clock.RealClock{})
			<-asked
			ended := make(chan struct{})
			go func() { defer close(ended); f.stop() }()
			select {
			case <-ended:
			case <-time.After(soon):
				t.Fatal("it does not end")
			}
			s.CloseClientConnections()
			s.Close()
			goleak.VerifyNone(t, before)
		})
	}
}
