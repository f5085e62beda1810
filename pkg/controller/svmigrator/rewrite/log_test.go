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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// TestLogOfManyDeniedObjects bounds what one run logs, and what the status names, however many objects are denied.
func TestLogOfManyDeniedObjects(t *testing.T) {
	const denied = 10 * maxDenialLines
	r := newFakeRun(denied, func(string, int, time.Time) tryResult {
		return tryResult{outcome: sweep.Denied, failure: Failure{kind: refused, message: strings.Repeat("no ", 1000)}}
	})
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	synctest.Test(t, func(t *testing.T) {
		if err := r.playIn(klog.NewContext(t.Context(), logger), time.Hour); err != nil {
			t.Fatal(err)
		}
	})
	log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if lines := strings.Count(log, "Not rewriting an object"); lines != maxDenialLines {
		t.Errorf("the log has %d lines about denied objects, want %d", lines, maxDenialLines)
	}
	last := r.saved[len(r.saved)-1]
	if len(last.Denied) != migrationv1alpha1.MaxDeniedObjects || last.Counts[sweep.Denied] != denied {
		t.Errorf("the position names %d of %d objects", len(last.Denied), last.Counts[sweep.Denied])
	}
}
