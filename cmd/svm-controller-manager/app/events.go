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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	v1core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
)

const (
	// lastEventsTimeout is how long the end of a recorder waits for the API server to take what was recorded.
	lastEventsTimeout = time.Second

	// endOfEvents is the reason of the event that is recorded last, and not written.
	endOfEvents = "EndOfEvents"
)

// newRecorder returns a recorder that writes through client until stop is called. stop waits until what was recorded
// before is written, but no longer than lastEventsTimeout.
//
// The source of all events is the manager, whichever controller records them: the fence refuses events of others.
func newRecorder(
	ctx context.Context, client kubernetes.Interface,
) (recorder record.EventRecorderLogger, stop func()) {
	objects := runtime.NewScheme() // what events are about
	utilruntime.Must(scheme.AddToScheme(objects))
	utilruntime.Must(migrationv1alpha1.AddToScheme(objects))
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartStructuredLogging(3)
	sink := endingSink{&v1core.EventSinkImpl{Interface: client.CoreV1().Events("")}, make(chan struct{})}
	broadcaster.StartRecordingToSink(sink)
	recorder = broadcaster.NewRecorder(objects, corev1.EventSource{Component: names.Manager})
	return recorder, func() {
		recorder.Event(&corev1.ObjectReference{}, corev1.EventTypeNormal, endOfEvents, "No more events are recorded")
		select {
		case <-sink.ended:
		case <-time.After(lastEventsTimeout):
		}
		broadcaster.Shutdown() // It drops what is not written yet.
	}
}

// endingSink closes ended when it gets the event that is recorded last. It gets events in their order, one at a time.
type endingSink struct {
	record.EventSink
	ended chan struct{}
}

// Create writes an event.
func (s endingSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if event.Reason == endOfEvents {
		close(s.ended)
		return event, nil
	}
	return s.EventSink.Create(event)
}
