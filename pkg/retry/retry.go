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

// Package retry has what all who repeat requests need: to wait, to tell an answer from none, and to log a row of
// failures once, and again each hour.
package retry

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Sleep waits for d. It returns false if ctx ended first.
func Sleep(ctx context.Context, clk clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// IsUnanswered reports whether the question is still open: no API server answered, or one said that it cannot answer
// now (429, 5xx). A refusal is an answer.
func IsUnanswered(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == 0
}

// repeatAfter is when a Streak logs a failure that lasts once more, because the earlier line may be far up by then.
const repeatAfter = time.Hour

// Streak logs a row of failures: each one that is of another kind than the one before it, one per hour while they are
// of the same kind, and the end of the row. The zero value is ready for use.
type Streak struct {
	mu       sync.Mutex
	kind     string    // of the last failure; empty if there was none, or if the row has ended
	loggedAt time.Time // when a failure of this kind was logged last
}

// Failed logs a failure, at verbosity 4 if one of the same kind was logged in the last hour and none of another kind
// came after it. A request that was cancelled is no failure: nobody waits for the answer any more.
func (s *Streak) Failed(ctx context.Context, kind, message string, keysAndValues ...any) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	logger := klog.FromContext(ctx).WithCallDepth(1)
	s.mu.Lock()
	if s.kind == kind && time.Since(s.loggedAt) < repeatAfter {
		logger = logger.V(4)
	} else {
		s.kind, s.loggedAt = kind, time.Now()
	}
	s.mu.Unlock()
	logger.Info(message, keysAndValues...)
}

// Succeeded logs the end of a row of failures. It does nothing if there was none.
func (s *Streak) Succeeded(ctx context.Context, message string, keysAndValues ...any) {
	s.mu.Lock()
	failed := s.kind != ""
	s.kind = ""
	s.mu.Unlock()
	if failed {
		klog.FromContext(ctx).WithCallDepth(1).Info(message, keysAndValues...)
	}
}
