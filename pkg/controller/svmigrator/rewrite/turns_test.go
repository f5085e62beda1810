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

package rewrite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestYieldsToOthers(t *testing.T) {
	t.Parallel()
	r := newFakeRun(20, func(string, int, time.Time) tryResult { return failing(unreachable) })
	if err := r.play(t, 2*StuckAfter); !errors.Is(err, errStopped) {
		t.Fatalf("nobody waits, and it ended with %v", err)
	}
	r.crowded = true
	began := r.fake.Now()
	if err := r.play(t, time.Hour); !errors.Is(err, ErrStuck) {
		t.Fatalf("it ended with %v", err)
	}
	if took := r.fake.Since(began); took < StuckAfter || took > 2*StuckAfter {
		t.Errorf("it made room after %v", took)
	}
}

// TestReasonOfAStuckRun has the first list of a run fail after almost StuckAfter. The run may end now, so the report
// must not wait until the failure has lasted for a while.
func TestReasonOfAStuckRun(t *testing.T) {
	r := newFakeRun(0, fine)
	r.task.Begin(noon)
	now := noon.Add(StuckAfter)
	r.listFailing.Since = now.Add(-time.Second)
	if report, sure := r.report(now); !sure || report.Phase != Stuck {
		t.Errorf("the phase is %q (sure: %t)", report.Phase, sure)
	}
}

// TestRetryInFlight has one object that fails. While it is tried again, nobody knows yet whether it still fails.
func TestRetryInFlight(t *testing.T) {
	t.Parallel()
	r := newFakeRun(0, fine)
	now := noon
	r.task.Begin(now)
	r.sweep.List()
	r.sweep.Listed(sweep.Chunk{Objects: []*sweep.Object{{Name: "only"}}, ResourceVersion: "1"})
	clear := func(want Phase) {
		t.Helper()
		report, sure := r.report(now)
		if sure != (want != "") || report.Phase != want {
			t.Errorf("the phase is %q (sure: %t), want %q", report.Phase, sure, want)
		}
	}
	object := r.sweep.Next(now)
	r.sweep.Take(object, r.runTime(now))
	clear(Rewriting)
	r.objectsFailing.Failure.kind = overloaded
	r.sweep.Retry(object, now.Add(time.Second))
	now = now.Add(2 * ReportAfter)
	clear(RetryingRequests)
	r.sweep.Take(object, r.runTime(now))
	clear("")
	r.sweep.Done(object, sweep.Rewritten, "", "")
	clear(Rewriting)
}

// TestTurnInTheMiddleOfAChunk has an object that fails for longer than the turn. The next run continues where this one
// ended.
func TestTurnInTheMiddleOfAChunk(t *testing.T) {
	t.Parallel()
	const turn = 30 * time.Second
	r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
		if name == "object-07" && now.Before(noon.Add(2*turn)) {
			return failing(overloaded)
		}
		return fine(name, n, now)
	})
	r.turn, r.crowded = turn, true
	if err := r.play(t, time.Hour); !errors.Is(err, ErrTurnOver) {
		t.Fatalf("it ended with %v", err)
	}
	if took := r.fake.Since(noon); took >= 2*turn {
		t.Errorf("the turn of %v lasted %v", turn, took)
	}
	r.crowded = false
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	for name, tries := range r.tries {
		if name != "object-07" && tries != 1 {
			t.Errorf("%s was sent %d times", name, tries)
		}
	}
	if last := r.saved[len(r.saved)-1]; last.Counts[sweep.Rewritten] != 20 {
		t.Errorf("the outcomes are %v", last.Counts)
	}
}

// TestTurnEndsWithoutCancellingRequests has lists that take longer than a turn, and a rewrite that is in flight when a
// turn ends. All are answered, and nothing is sent after the end.
func TestTurnEndsWithoutCancellingRequests(t *testing.T) {
	t.Parallel()
	const turn = 20 * time.Second
	r := newFakeRun(5, fine)
	r.turn, r.crowded = turn, true
	// takes returns when so much time of the run has passed, or when the request is cancelled.
	takes := func(ctx context.Context, d time.Duration) error {
		for began := r.fake.Now(); ctx.Err() == nil && r.fake.Since(began) < d; {
			time.Sleep(time.Millisecond)
		}
		return ctx.Err()
	}
	list, rewrite, lists := r.list, r.rewrite, 0
	r.list = func(ctx context.Context, token string) (sweep.Chunk, error) {
		if lists++; lists > 1 && r.fake.Since(r.task.began) > turn {
			t.Error("a list was sent after the end of the turn")
		}
		if err := takes(ctx, 3*turn); err != nil {
			return sweep.Chunk{}, err
		}
		chunk, err := list(ctx, token)
		if chunk.Next = "more"; token != "" {
			chunk = sweep.Chunk{Objects: []*sweep.Object{{Name: "last"}}}
		}
		return chunk, err
	}
	r.rewrite = func(ctx context.Context, object *sweep.Object) tryResult {
		if object.Name == "object-03" && takes(ctx, 2*turn) != nil {
			t.Error("the rewrite was cancelled")
		}
		return rewrite(ctx, object)
	}
	for runs := 1; ; runs++ {
		err := r.play(t, time.Hour)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrTurnOver) || runs > 5 {
			t.Fatalf("run %d ended with %v", runs, err)
		}
	}
	if lists != 2 || r.tries["object-03"] != 1 {
		t.Errorf("it sent %d lists, and %d rewrites of one object", lists, r.tries["object-03"])
	}
}

// TestListsAreSmallerInTheNextRun has a list that fails. The list of the next run is as small as the next one would
// have been.
func TestListsAreSmallerInTheNextRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var limits []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		limits = append(limits, request.URL.Query().Get("limit"))
		switch len(limits) {
		case 2:
			cancel()
			<-request.Context().Done()
		case 3:
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",`+
				`"metadata":{"resourceVersion":"9"},"items":[]}`)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	pace := pacer.New(pacer.Options{MaxConcurrent: 1, Unpaced: true, Clock: clock.RealClock{}})
	e, err := NewEngine(&rest.Config{Host: server.URL}, pace, clock.RealClock{}, 400, 0)
	if err != nil {
		t.Fatal(err)
	}
	task := NewTask(storageversion.Custom, sweep.Position{})
	resource := Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: storageversion.Custom}
	if err := e.Run(ctx, task, resource, newFakeRun(0, fine)); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first run ended with %v", err)
	}
	if err := e.Run(t.Context(), task, resource, newFakeRun(0, fine)); err != nil {
		t.Fatal(err)
	}
	if want := []string{"400", "200", "200"}; !slices.Equal(limits, want) {
		t.Errorf("the limits are %q, want %q", limits, want)
	}
}

// TestSecondSweepInTheSameTurn has an object denied at the moment at which the turn ends. The second sweep comes in the
// next run. After that no run does anything: it may be repeated because the migration cannot be ended.
func TestSecondSweepInTheSameTurn(t *testing.T) {
	t.Parallel()
	const turn = 30 * time.Second
	const metadata = `"metadata":{"name":"w","uid":"u","resourceVersion":"4"}`
	clk, patches := clocktesting.NewFakeClock(noon), 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		accepts := request.Header.Get("Accept")
		switch {
		case request.Method == http.MethodPatch:
			patches++
			clk.Step(turn)
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden",`+
				`"message":"admission webhook \"x\" denied the request: no"}`)
		case strings.Contains(accepts, "PartialObjectMetadataList"):
			_, _ = fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",`+
				`"metadata":{"resourceVersion":"9"},"items":[{`+metadata+`}]}`)
		case strings.Contains(accepts, "PartialObjectMetadata"):
			_, _ = fmt.Fprint(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",`+metadata+`}`)
		default:
			_, _ = fmt.Fprint(w, `{"kind":"Widget","apiVersion":"example.com/v1",`+metadata+`}`)
		}
	}))
	defer server.Close()
	pace := pacer.New(pacer.Options{MaxConcurrent: 1, Unpaced: true, Clock: clk})
	e, err := NewEngine(&rest.Config{Host: server.URL}, pace, clk, 400, turn)
	if err != nil {
		t.Fatal(err)
	}
	task, r := NewTask(storageversion.Custom, sweep.Position{}), newFakeRun(0, fine)
	resource := Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: storageversion.Custom}
	r.crowded = true
	if err := e.Run(t.Context(), task, resource, r); !errors.Is(err, ErrTurnOver) || patches != 1 {
		t.Fatalf("the first run sent %d patches, and ended with %v", patches, err)
	}
	r.crowded = false
	if err := e.Run(t.Context(), task, resource, r); err != nil || patches != 2 {
		t.Fatalf("the second run sent %d patches, and ended with %v", patches-1, err)
	}
	if last := r.saved[len(r.saved)-1]; last.Counts[sweep.Denied] != 1 || len(last.Denied) != 1 {
		t.Errorf("at the end %+v", last)
	}
	r.saved, r.reports = nil, nil
	if err := e.Run(t.Context(), task, resource, r); err != nil || patches != 2 || len(r.saved)+len(r.reports) > 0 {
		t.Errorf("the third run sent %d patches, saved %v, reported %v and ended with %v", patches-2, r.saved, r.reports, err)
	}
}

// TestDenialsOfForgottenChunks has objects that are denied in two runs, because the definition changed in between. They
// are too few to expect the same for all objects, and must not count twice.
func TestDenialsOfForgottenChunks(t *testing.T) {
	t.Parallel()
	r := newFakeRun(commonDenialsAtLeast-1, func(name string, _ int, _ time.Time) tryResult {
		if name == "object-07" {
			return failing(overloaded)
		}
		return tryResult{outcome: sweep.Denied, failure: Failure{deniedForChange: true}}
	})
	for _, within := range []time.Duration{10 * time.Second, 20 * time.Second} {
		if err := r.play(t, within); !errors.Is(err, errStopped) {
			t.Errorf("it ended with %v", err)
		}
		if r.deniedForChange.objects != commonDenialsAtLeast-2 {
			t.Errorf("%d objects were denied", r.deniedForChange.objects)
		}
		r.task.ForgetListed()
	}
}

// TestTokenThatExpiresAfterForgetting has the token of the third chunk expire while the second one is rewritten, and
// that of the second one after the definition has changed. The list goes on with a new token both times.
func TestTokenThatExpiresAfterForgetting(t *testing.T) {
	t.Parallel()
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "new"
	mended := false
	r := newFakeRun(5, func(name string, n int, now time.Time) tryResult {
		if name == "late" && !mended {
			return failing(overloaded)
		}
		return fine(name, n, now)
	})
	first := r.list
	r.list = func(ctx context.Context, token string) (sweep.Chunk, error) {
		late := sweep.Chunk{Objects: []*sweep.Object{{Name: "late", Extra: &original{}}}}
		switch {
		case token == "":
			chunk, err := first(ctx, token)
			chunk.Next = "second"
			return chunk, err
		case token == "second" && !mended:
			late.Next = "third"
			return late, nil
		case token == "new" && mended:
			return late, nil
		case token == "new":
			return sweep.Chunk{}, apierrors.NewInternalError(errors.New("the conversion webhook is away"))
		}
		return sweep.Chunk{}, expired
	}
	if err := r.play(t, 10*time.Second); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	mended = true
	r.task.ForgetListed()
	if err := r.play(t, time.Hour); err != nil || r.restarts > 0 {
		t.Errorf("it ended with %v after the list began anew %d times", err, r.restarts)
	}
}
