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

// Package controller has what the controllers of this project share.
package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// ErrOutdated is why a write was refused or not made: the object has changed since it was read. It is no failure. The
// controller decides again on what is there now.
var ErrOutdated = errors.New("the object has changed since it was read")

// Handle does the work for one key of a queue. It returns when the key must be handled again although nothing has
// changed. The zero time means never.
type Handle[K comparable] func(ctx context.Context, key K) (again time.Time, err error)

// logInterval is how often Work logs failures of one kind.
const logInterval = time.Minute

// Work handles the keys of a queue, one after the other, until the queue is shut down or ctx ends. It handles a key
// again after a backoff if handle failed, and logs the error, except ErrOutdated. What fails for one key often fails
// for all of them, for lack of a permission for instance: Work logs one error of each kind in a minute. minDelay is the
// least time before a key is handled again at the time that handle asked for.
func Work[K comparable](
	ctx context.Context, clk clock.PassiveClock, queue workqueue.TypedRateLimitingInterface[K], minDelay time.Duration,
	handle Handle[K],
) {
	logged := map[metav1.StatusReason]time.Time{}
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		workOn(ctx, clk, queue, minDelay, handle, key, logged)
		if ctx.Err() != nil {
			return
		}
	}
}

func workOn[K comparable](
	ctx context.Context, clk clock.PassiveClock, queue workqueue.TypedRateLimitingInterface[K], minDelay time.Duration,
	handle Handle[K], key K, logged map[metav1.StatusReason]time.Time,
) {
	defer queue.Done(key)
	again, err := handle(ctx, key)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, ErrOutdated):
		queue.AddRateLimited(key)
	case err != nil:
		if kind := apierrors.ReasonForError(err); clk.Since(logged[kind]) >= logInterval {
			logged[kind] = clk.Now()
			utilruntime.HandleErrorWithContext(ctx, err, "Sync failed, will retry; others may fail for the same reason",
				"key", fmt.Sprint(key))
		}
		queue.AddRateLimited(key)
	default:
		queue.Forget(key)
		if !again.IsZero() {
			queue.AddAfter(key, max(again.Sub(clk.Now()), minDelay))
		}
	}
}

// SaysMissing reports whether err is the API server's own statement that this very object does not exist. A proxy, or a
// server that does not serve the group, answers 404 as well; such an answer says nothing about the object.
func SaysMissing(err error, resource schema.GroupResource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Group == resource.Group && details.Kind == resource.Resource && details.Name == name
}

// Sentence returns s with an upper case first letter and a full stop.
func Sentence(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return s
	}
	s = string(unicode.ToUpper(first)) + s[size:]
	if strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}
