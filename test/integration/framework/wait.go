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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// poll is how often a condition is looked at. Looks cost the servers of tests processor time.
const poll = 200 * time.Millisecond

// Eventually polls until check has nothing to complain about.
func Eventually(t *testing.T, within time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), poll, within, true, func(ctx context.Context) (bool, error) {
		if err := check(ctx); ctx.Err() == nil || last == nil {
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("after %v still: %v", within, last)
	}
}

// During calls check again and again for that long, and fails the test at its first complaint.
func During(t *testing.T, period time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), period)
	defer cancel()
	var complaint error
	wait.UntilWithContext(ctx, func(context.Context) {
		if complaint = check(t.Context()); complaint != nil {
			cancel()
		}
	}, poll)
	if complaint != nil {
		t.Fatal(complaint)
	}
}
