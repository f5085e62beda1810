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

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// recordingQueue records what a worker does with a key after it was handled.
type recordingQueue struct {
	workqueue.TypedRateLimitingInterface[string]
	calls []string
}

func (q *recordingQueue) AddRateLimited(key string) { q.calls = append(q.calls, "backoff "+key) }
func (q *recordingQueue) Forget(key string)         { q.calls = append(q.calls, "forget "+key) }
func (q *recordingQueue) AddAfter(key string, d time.Duration) {
	q.calls = append(q.calls, fmt.Sprintf("add %s after %v", key, d))
}

func TestWork(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		again time.Time
		err   error
		stop  bool
		ends  bool
		want  []string
	}{
		"done":                            {want: []string{"forget a"}},
		"again later":                     {again: now.Add(time.Minute), want: []string{"forget a", "add a after 1m0s"}},
		"again sooner than the least":     {again: now.Add(-time.Minute), want: []string{"forget a", "add a after 1s"}},
		"a failure":                       {err: errors.New("no"), want: []string{"backoff a"}},
		"an outdated object":              {err: fmt.Errorf("writing: %w", ErrOutdated), want: []string{"backoff a"}},
		"a failure because ctx has ended": {err: errors.New("no"), stop: true},
		"fields that the definition lacks": {ends: true,
			err: fmt.Errorf("writing: %w", apierrors.NewBadRequest(`strict decoding error: unknown field "status.epoch"`))},
		"a restore of etcd":   {ends: true, err: fmt.Errorf("getting: %w", storageversion.ErrRestored)},
		"another bad request": {err: apierrors.NewBadRequest("no"), want: []string{"backoff a"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			queue := &recordingQueue{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(
				workqueue.DefaultTypedControllerRateLimiter[string]())}
			queue.Add("a")
			worked := Queue[string]{queue, QueueOptions[string]{
				Clock: testingclock.NewFakeClock(now), MinRetry: time.Second,
				Handle: func(_ context.Context, key string) (time.Time, error) {
					if key != "a" {
						t.Errorf("handled %q, want a", key)
					}
					if tc.stop {
						cancel(nil)
					}
					queue.ShutDown()
					return tc.again, tc.err
				},
			}}
			worked.work(ctx, cancel)
			if cause := context.Cause(ctx); (EndsManager(cause) != nil) != tc.ends {
				t.Errorf("the controller ends: %v, want %v", cause, tc.ends)
			}
			if diff := cmp.Diff(tc.want, queue.calls); diff != "" {
				t.Errorf("calls of the queue differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTimeoutOfASync has a request that nobody answers. The worker goes on after the timeout, and tries the key again.
func TestTimeoutOfASync(t *testing.T) {
	queue := &recordingQueue{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(
		workqueue.DefaultTypedControllerRateLimiter[string]())}
	queue.Add("a")
	worked := Queue[string]{queue, QueueOptions[string]{
		Clock: clock.RealClock{}, Timeout: time.Millisecond,
		Handle: func(ctx context.Context, _ string) (time.Time, error) {
			queue.ShutDown()
			<-ctx.Done()
			return time.Time{}, ctx.Err()
		},
	}}
	worked.work(t.Context(), func(error) { t.Error("the controller ends") })
	if diff := cmp.Diff([]string{"backoff a"}, queue.calls); diff != "" {
		t.Errorf("calls of the queue differ (-want +got):\n%s", diff)
	}
}

func TestSaysMissing(t *testing.T) {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"no error":       {},
		"the API server": {err: apierrors.NewNotFound(leases, "a"), want: true},
		"the API server, wrapped": {
			err:  fmt.Errorf("getting: %w", apierrors.NewNotFound(leases, "a")),
			want: true,
		},
		"another object": {err: apierrors.NewNotFound(leases, "b")},
		"another group":  {err: apierrors.NewNotFound(schema.GroupResource{Group: "other", Resource: "leases"}, "a")},
		"the namespace":  {err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "a")},
		"a proxy": {
			err: apierrors.NewGenericServerResponse(http.StatusNotFound, "get", leases, "a", "404 page not found", 0, true),
		},
		"a failure":         {err: apierrors.NewInternalError(errors.New("etcd"))},
		"no answer at all":  {err: errors.New("connection refused")},
		"a refusal to read": {err: apierrors.NewForbidden(leases, "a", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := SaysMissing(tc.err, leases, "a"); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestSentence(t *testing.T) {
	for s, want := range map[string]string{
		"":                "",
		"the server":      "The server.",
		"A full stop.":    "A full stop.",
		"über den Wolken": "Über den Wolken.",
	} {
		if got := Sentence(s); got != want {
			t.Errorf("Sentence(%q) is %q, want %q", s, got, want)
		}
	}
}

// TestRefused has answers to writes. A webhook chooses the code of its verdict.
func TestRefused(t *testing.T) {
	verdict := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReason("Policy"),
			Message: `admission webhook "policy.example.com" denied the request: no`,
		}}
	}
	states := schema.GroupResource{Group: "migration.k8s.io", Resource: "storagestates"}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"a permission is missing":   {apierrors.NewForbidden(states, "a", errors.New("no")), true},
		"the object is invalid":     {apierrors.NewInvalid(schema.GroupKind{}, "a", nil), true},
		"a webhook without a code":  {verdict(http.StatusBadRequest), true},
		"a webhook says conflict":   {verdict(http.StatusConflict), true},
		"a webhook says it is gone": {verdict(http.StatusNotFound), true},
		"a webhook is away":         {apierrors.NewInternalError(errors.New(`failed calling webhook "w": EOF`)), true},
		"somebody else wrote it":    {apierrors.NewConflict(states, "a", errors.New("it was modified")), false},
		"it does not exist":         {apierrors.NewNotFound(states, "a"), false},
		"the API server is busy":    {apierrors.NewTooManyRequests("later", 1), false},
		"etcd has no leader":        {apierrors.NewInternalError(errors.New("etcdserver: no leader")), false},
		"there is no answer":        {errors.New("connection refused"), false},
	} {
		if got := Refused(fmt.Errorf("writing: %w", test.err)); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
