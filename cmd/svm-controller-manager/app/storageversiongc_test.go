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

package app

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	testingclock "k8s.io/utils/clock/testing"
)

// TestEachLossIsLoggedOnce has a resource that is served three times, and not in between. The third time comes less
// than a minute after the second.
func TestEachLossIsLoggedOnce(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	ctx := klog.NewContext(t.Context(), logger)
	unserved := apierrors.NewNotFound(schema.GroupResource{}, "")
	var version string // of the list, or empty while the resource is not served
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			if version == "" {
				return nil, unserved
			}
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, unserved },
	}, &corev1.Pod{}, cache.NewStore(cache.MetaNamespaceKeyFunc), cache.ReflectorOptions{})
	now := testingclock.NewFakeClock(time.Now())
	handle := newUnservedHandler(now)
	for _, version = range []string{"5", "", "", "9", "12", ""} {
		now.Step(25 * time.Second)
		handle(ctx, reflector, reflector.ListAndWatchWithContext(ctx))
	}
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().Data(); len(log) != 2 {
		t.Errorf("want two lines in the log, got %v", log)
	}
}
