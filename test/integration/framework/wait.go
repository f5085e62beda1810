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

package framework

import (
	"context"
	"errors"
	"testing"
	"time"
)

// pollInterval is how long to wait between two looks at a condition. Looks cost processor time, of which the tests have
// too little: some start a program. So the wait is also restOfLooks times as long as the last look, and a tenth of all
// the time so far, up to longestRest.
const (
	pollInterval = 500 * time.Millisecond
	restOfLooks  = 3
	longestRest  = 2 * time.Second
	// pollMemory is how long to wait at least between two looks at what this process recorded, which cost next to nothing.
	pollMemory = 100 * time.Millisecond
	// fewestLooks is how often During looks at least: on a busy machine a single look may last for the whole period.
	fewestLooks = 3
)

// restAfter is how long to rest after a look that took so long, and all looks together so long.
func restAfter(last, all time.Duration) time.Duration {
	return max(pollInterval, min(max(restOfLooks*last, all/10), longestRest))
}

func restOfMemory(last, _ time.Duration) time.Duration {
	return max(pollMemory, min(restOfLooks*last, longestRest))
}

// repeat calls look until it returns true or ctx ends, and rests after each.
func repeat(
	ctx context.Context, rest func(last, all time.Duration) time.Duration, look func(ctx context.Context) (done bool),
) {
	first := time.Now()
	for began := first; ctx.Err() == nil && !look(ctx); began = time.Now() {
		select {
		case <-time.After(rest(time.Since(began), time.Since(first))):
		case <-ctx.Done():
		}
	}
}

// Eventually polls until check has nothing to complain about.
func Eventually(t *testing.T, within time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	poll(t, within, restAfter, check)
}

// EventuallySeen is Eventually for a check that sends no request and reads no file, because it is about what this
// process recorded. It looks more often.
func EventuallySeen(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	poll(t, within, restOfMemory, func(context.Context) error { return check() })
}

func poll(
	t *testing.T, within time.Duration, rest func(last, all time.Duration) time.Duration,
	check func(ctx context.Context) error,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	last := errors.New("nobody has looked")
	repeat(ctx, rest, func(ctx context.Context) bool {
		if err := check(ctx); err == nil || ctx.Err() == nil {
			last = err
		}
		return last == nil
	})
	if last != nil {
		t.Fatalf("after %v still: %v", within, last)
	}
}

// During calls check again and again for that long, but fewestLooks times at least, and fails the test at its first
// complaint.
func During(t *testing.T, period time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), period)
	defer cancel()
	var complaint error
	looks := 0
	look := func(context.Context) (done bool) {
		complaint = check(t.Context())
		looks++
		return complaint != nil || ctx.Err() != nil && looks >= fewestLooks
	}
	repeat(ctx, restAfter, look)
	if complaint == nil && looks < fewestLooks {
		repeat(t.Context(), restAfter, look)
	}
	if complaint != nil {
		t.Fatal(complaint)
	}
}
