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

package retry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	testingclock "k8s.io/utils/clock/testing"
)

func TestSleep(t *testing.T) {
	t.Run("it waits", func(t *testing.T) {
		clock := testingclock.NewFakeClock(time.Now())
		done := make(chan bool)
		go func() { done <- Sleep(t.Context(), clock, time.Minute) }()
		for !clock.HasWaiters() {
			time.Sleep(time.Millisecond)
		}
		select {
		case <-done:
			t.Fatal("it did not wait")
		default:
		}
		clock.Step(time.Minute)
		if !<-done {
			t.Error("got false although the context has not ended")
		}
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	clock := testingclock.NewFakeClock(time.Now())
	for name, tc := range map[string]struct {
		ctx  context.Context
		d    time.Duration
		want bool
	}{
		"the context ends":                      {ctx: ended, d: time.Minute},
		"no time to wait":                       {ctx: t.Context(), want: true},
		"no time to wait, but the context ends": {ctx: ended},
		"a time in the past":                    {ctx: t.Context(), d: -time.Second, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Sleep(tc.ctx, clock, tc.d); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestUnanswered(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"no connection":          {err: errors.New("connection refused"), want: true},
		"a request that is late": {err: context.DeadlineExceeded, want: true},
		"an internal error":      {err: apierrors.NewInternalError(errors.New("etcd")), want: true},
		"too many requests":      {err: apierrors.NewTooManyRequests("wait", 1), want: true},
		"a status without code":  {err: &apierrors.StatusError{}, want: true},
		"a proxy's 502": {
			err:  apierrors.NewGenericServerResponse(http.StatusBadGateway, "get", pods, "a", "", 0, true),
			want: true,
		},
		"not found":          {err: apierrors.NewNotFound(pods, "a")},
		"forbidden":          {err: apierrors.NewForbidden(pods, "a", nil)},
		"forbidden, wrapped": {err: fmt.Errorf("getting: %w", apierrors.NewForbidden(pods, "a", nil))},
		"a conflict":         {err: apierrors.NewConflict(pods, "a", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsUnanswered(tc.err); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestStreakLogsARowOnce(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	ctx := klog.NewContext(t.Context(), logger)
	var streak Streak
	streak.Succeeded(ctx, "nothing has failed")
	for range 3 {
		streak.Failed(ctx, "down", "is down", "n", 1)
	}
	streak.Failed(ctx, "refused", "is refused")
	streak.Succeeded(ctx, "works again")
	streak.Succeeded(ctx, "still works")
	streak.Failed(ctx, "refused", "is refused")
	stopped, stop := context.WithCancel(ctx)
	stop()
	streak.Failed(stopped, "down", "the request was cancelled")
	var got []string
	for _, entry := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		got = append(got, entry.Message)
	}
	want := []string{"is down", "is refused", "works again", "is refused"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log differs (-want +got):\n%s", diff)
	}
}

// TestStreakRepeats has a failure that lasts for two and a half hours.
func TestStreakRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
		ctx := klog.NewContext(t.Context(), logger)
		var streak Streak
		for began := time.Now(); time.Since(began) < 150*time.Minute; time.Sleep(time.Minute) {
			streak.Failed(ctx, "down", "is down")
		}
		if lines := len(logger.GetSink().(ktesting.Underlier).GetBuffer().Data()); lines != 3 {
			t.Errorf("the log has %d lines, want 3", lines)
		}
	})
}
