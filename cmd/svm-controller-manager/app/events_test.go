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
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestLastEventsAreWritten has a process that ends right after it has recorded events.
func TestLastEventsAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Millisecond) // The recorder is faster than the API server.
			return false, nil, nil
		})
		recorder, stop := newRecorder(t.Context(), client)
		const recorded = 20
		for i := range recorded {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", i)}}
			recorder.Event(pod, corev1.EventTypeNormal, "Reason", "message")
		}
		stop()
		written, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(written.Items) != recorded {
			t.Errorf("%d events are written, want %d; error %v", len(written.Items), recorded, err)
		}
	})
}

// TestEventsDoNotHoldUpTheEnd has an API server that does not answer.
func TestEventsDoNotHoldUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, answer := fake.NewClientset(), make(chan struct{})
		defer close(answer)
		client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-answer
			return false, nil, nil
		})
		recorder, stop := newRecorder(t.Context(), client)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}}
		recorder.Event(pod, corev1.EventTypeNormal, "Reason", "message")
		before := time.Now()
		stop()
		if took := time.Since(before); took != lastEventsTimeout {
			t.Errorf("the end waits for %v, want %v", took, lastEventsTimeout)
		}
	})
}
