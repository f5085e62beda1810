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

package storageversiongc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

type server struct{ id, encoding string }

func (s server) entry() apiserverinternalv1alpha1.ServerStorageVersion {
	return apiserverinternalv1alpha1.ServerStorageVersion{
		APIServerID:       s.id,
		EncodingVersion:   s.encoding,
		DecodableVersions: []string{"gc.example.com/v1", "gc.example.com/v2"},
		ServedVersions:    []string{"gc.example.com/v1"},
	}
}

// publish does what API servers do: get or create, put the own entries in, compute the rest, update the status.
// It returns the object as it is then.
func publish(
	ctx context.Context, client kubernetes.Interface, name string, servers ...server,
) (*apiserverinternalv1alpha1.StorageVersion, error) {
	api := client.InternalV1alpha1().StorageVersions()
	object, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		object = &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: name}}
		object, err = api.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("preparing storage version %q: %w", name, err)
	}
	for _, s := range servers {
		same := func(e apiserverinternalv1alpha1.ServerStorageVersion) bool { return e.APIServerID == s.id }
		if i := slices.IndexFunc(object.Status.StorageVersions, same); i >= 0 {
			object.Status.StorageVersions[i] = s.entry()
		} else {
			object.Status.StorageVersions = append(object.Status.StorageVersions, s.entry())
		}
	}
	storageversion.SetCommonEncodingVersion(object)
	if object, err = api.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("publishing storage version %q: %w", name, err)
	}
	return object, nil
}

func mustPublish(t *testing.T, client kubernetes.Interface, name string, servers ...server) {
	t.Helper()
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) } // by a collector
	err := retry.OnError(retry.DefaultBackoff, overtaken, func() error {
		_, err := publish(t.Context(), client, name, servers...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// status is what tests compare: the servers, what they agree on, and what the condition says about it.
type status struct {
	Servers   []string
	Common    string
	Condition string
}

var (
	agreed    = "True CommonEncodingVersionSet"
	disagreed = "False CommonEncodingVersionUnset"
)

func statusOf(object *apiserverinternalv1alpha1.StorageVersion) status {
	s := status{Common: ptr.Deref(object.Status.CommonEncodingVersion, "")}
	for _, e := range object.Status.StorageVersions {
		s.Servers = append(s.Servers, e.APIServerID)
	}
	for _, c := range object.Status.Conditions {
		if c.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual {
			s.Condition = fmt.Sprintf("%s %s", c.Status, c.Reason)
		}
	}
	return s
}

// witness sees every change of every StorageVersion, in order.
type witness struct {
	mu     sync.Mutex
	events map[string][]watch.Event
	broken error
	watch  watch.Interface
	done   chan struct{}
}

func startWitness(t *testing.T, client kubernetes.Interface) *witness {
	t.Helper()
	storageVersions := client.InternalV1alpha1().StorageVersions()
	list, err := storageVersions.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{events: map[string][]watch.Event{}, done: make(chan struct{})}
	for i := range list.Items {
		w.events[list.Items[i].Name] = []watch.Event{{Type: watch.Added, Object: &list.Items[i]}}
	}
	w.watch, err = storageVersions.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	go w.look()
	t.Cleanup(w.stop)
	return w
}

func (w *witness) look() {
	defer close(w.done)
	for event := range w.watch.ResultChan() {
		w.mu.Lock()
		if object, ok := event.Object.(*apiserverinternalv1alpha1.StorageVersion); ok {
			w.events[object.Name] = append(w.events[object.Name], event)
		} else {
			w.broken = apierrors.FromObject(event.Object)
		}
		w.mu.Unlock()
	}
}

func (w *witness) stop() {
	w.watch.Stop()
	<-w.done
}

// running fails the test if the witness may have missed something.
func (w *witness) running(t *testing.T) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatal("the watch ended, so that nothing is proven")
	default:
	}
	if w.broken != nil {
		t.Fatalf("the watch broke: %v", w.broken)
	}
}

// changes is how often the object changed since the witness came.
func (w *witness) changes(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events[name]) - 1
}

// neverLost checks that the server's entry stayed, unchanged, in every object that had it once. It returns how many
// these are.
func (w *witness) neverLost(t *testing.T, serverID string) int {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running(t)
	objects := 0
	for name, events := range w.events {
		var had *apiserverinternalv1alpha1.ServerStorageVersion
		for _, event := range events {
			object := event.Object.(*apiserverinternalv1alpha1.StorageVersion)
			has := entryOf(object, serverID)
			if had != nil && (event.Type == watch.Deleted || has == nil || has.EncodingVersion != had.EncodingVersion) {
				t.Errorf("%s lost the entry of %s at resource version %s (%s), leaving %v",
					name, serverID, object.ResourceVersion, event.Type, statusOf(object))
			}
			had = has
		}
		if had != nil {
			objects++
		}
	}
	return objects
}

func entryOf(
	object *apiserverinternalv1alpha1.StorageVersion, serverID string,
) *apiserverinternalv1alpha1.ServerStorageVersion {
	for i := range object.Status.StorageVersions {
		if object.Status.StorageVersions[i].APIServerID == serverID {
			return &object.Status.StorageVersions[i]
		}
	}
	return nil
}

// mentions complains about every object that has (or, with want, has not) an entry of the server.
func mentions(ctx context.Context, client kubernetes.Interface, serverID string, want bool) error {
	list, err := client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var wrong []string
	for i := range list.Items {
		if has := entryOf(&list.Items[i], serverID) != nil; has != want {
			wrong = append(wrong, list.Items[i].Name)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("entry of %s present: %t, in %d of %d objects: %v",
			serverID, !want, len(wrong), len(list.Items), wrong)
	}
	return nil
}
