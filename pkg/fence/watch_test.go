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

package fence

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

var (
	refusal = refused("The namespaces \"kube-system\" is invalid: : ValidatingAdmissionPolicy '" + Policy +
		"' with binding '" + Policy + "' denied request: svm-controller-manager may only send writes that change nothing")
	another = refused("namespaces \"kube-system\" is forbidden: ValidatingAdmissionPolicy 'labels' with binding " +
		"'labels' denied request: no labels here")
)

func refused(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Message: message,
	}}
}

// TestWatch lets time pass between the answers of an API server.
func TestWatch(t *testing.T) {
	steps := []struct {
		name   string
		answer error
		after  time.Duration
		want   State
	}{
		{"the fence is not in force yet", nil, 0, Missing},
		{"it is noticed within a minute", refusal, time.Minute, Standing},
		{"another policy refuses the change, within the hour", another, time.Hour, Unknown},
		{"the fence again", refusal, time.Minute, Standing},
		{"an outage says nothing about the fence", errors.New("connection refused"), time.Hour, Standing},
		{"a webhook that fails may come after the fence", apierrors.NewInternalError(errors.New(
			"failed calling webhook \"labels.example.com\": connection refused")), time.Minute, Unknown},
		{"the fence was removed", nil, 2 * time.Minute, Missing},
		{"and is noticed after twice the time", refusal, 4 * time.Minute, Standing},
	}
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var mu sync.Mutex
		answer, checks := steps[0].answer, 0
		client := fake.NewClientset()
		client.PrependReactor("patch", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if options := action.(clienttesting.PatchActionImpl).PatchOptions; len(options.DryRun) != 1 {
				t.Error("the change is no dry run")
			}
			mu.Lock()
			defer mu.Unlock()
			checks++
			return true, &corev1.Namespace{}, answer
		})
		w := NewWatch(clock.RealClock{})
		go w.Run(ctx, client)
		for i, step := range steps {
			mu.Lock()
			answer = step.answer
			mu.Unlock()
			time.Sleep(step.after)
			synctest.Wait()
			mu.Lock()
			if got := w.State(); got != step.want || checks != i+1 {
				t.Errorf("%s: the state is %s after %d checks, want %s after %d", step.name, got, checks, step.want, i+1)
			}
			mu.Unlock()
		}
	})
}
