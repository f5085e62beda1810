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
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// soon is far below the poll interval: a change that the observer sees by then was reported by a watch. The observer
	// takes less than five seconds on a machine of its own.
	soon = 3 * time.Minute
	// eventually is for what must happen, no matter when.
	eventually = 10 * time.Minute
	// poll is how often a condition is looked at, for some with requests.
	poll        = 300 * time.Millisecond
	fewestLooks = 5

	observerUser = "observer"
)

// open is a server at which everybody may do everything. It starts in half the time.
var open = controlplane.Server{AllowAll: true}

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	policies    = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}
	flunders    = schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}
	widgets     = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// observed is a running Observer.
type observed struct {
	*observer.Observer
	stop func()

	mu sync.Mutex
	// told counts the calls of the subscriber.
	told map[schema.GroupResource]int
}

func startObserver(t *testing.T, config *rest.Config, options observer.Options) *observed {
	t.Helper()
	o, err := observer.New(config, options)
	if err != nil {
		t.Fatal(err)
	}
	s := &observed{Observer: o, told: map[schema.GroupResource]int{}}
	o.Subscribe(func(resource schema.GroupResource) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told[resource]++
	})
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { o.Run(ctx) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(s.stop)
	within(t, eventually, func() error {
		if !o.HasSynced() {
			return fmt.Errorf("the observer has not synced")
		}
		return nil
	})
	return s
}

func (s *observed) toldOf(resource schema.GroupResource) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[resource]
}

// within waits until check has nothing to complain about.
func within(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	began := time.Now()
	var last error
	try := func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	}
	if wait.PollUntilContextTimeout(t.Context(), poll, limit, true, try) != nil {
		t.Fatalf("after %v still: %v", limit, last)
	}
	t.Logf("it took %v", time.Since(began).Round(time.Millisecond))
}

// during fails the test as soon as check complains. It calls check fewestLooks times at least.
func during(t *testing.T, period time.Duration, check func() error) {
	t.Helper()
	for looks, end := 0, time.Now().Add(period); looks < fewestLooks || time.Now().Before(end); looks++ {
		if err := check(); err != nil {
			t.Error(err)
			return
		}
		time.Sleep(poll)
	}
}

// duringRequests fails the test as soon as check complains, until so many more requests were counted.
func duringRequests(t *testing.T, counted *atomic.Int64, more int64, check func() error) {
	t.Helper()
	before := counted.Load()
	within(t, eventually, func() error {
		if err := check(); err != nil {
			t.Fatal(err)
		}
		if n := counted.Load() - before; n < more {
			return fmt.Errorf("the observer has sent %d requests that tell of polls, want %d", n, more)
		}
		return nil
	})
}

// complete says what is missing in an observation that should be complete and have that many encodings.
func (s *observed) complete(resource schema.GroupResource, class storageversion.Class, encodings int) error {
	o := s.Observe(resource)
	last, seen := o.Last()
	switch {
	case o.Problem != nil:
		return fmt.Errorf("%s: %s: %s", resource, o.Problem.Reason, o.Problem.Message)
	case o.Class != class || o.Presence != storageversion.Served:
		return fmt.Errorf("%s is %s, presence %q", resource, o.Class, o.Presence)
	case !seen || len(last.Writing) != encodings || slices.Contains(last.Writing, storageversion.Unknown):
		return fmt.Errorf("%s is written as %q, seen %t", resource, last.Writing, seen)
	}
	return nil
}

// versions are the encodings of the last sighting, as group versions.
func (s *observed) versions(resource schema.GroupResource) []string {
	o := s.Observe(resource)
	last, _ := o.Last()
	var all []string
	for _, hash := range last.Writing {
		all = append(all, o.Versions[hash])
	}
	slices.Sort(all)
	return all
}
