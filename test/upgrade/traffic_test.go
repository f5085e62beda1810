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

package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	// trafficInterval is the time between two writes through one server.
	trafficInterval = 200 * time.Millisecond
	trafficTimeout  = 10 * time.Second
	// trafficNames is how many objects of each kind a writer has.
	trafficNames = 8
	// trafficLife is after how many writes a writer deletes an object.
	trafficLife = 31
	beat        = "example.com/beat"
)

// kinds are what the writers write: what releases store in several versions, and what they do not.
func kinds(custom bool) []kind {
	kinds := []kind{
		{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap", "default", nil},
		{bindings.WithVersion("v1beta1"), "MutatingAdmissionPolicyBinding", "", map[string]any{
			"spec": map[string]any{"policyName": "none"},
		}},
		{classes.WithVersion("v1"), "VolumeAttributesClass", "", map[string]any{
			"driverName": "example.com", "parameters": map[string]any{"a": "b"},
		}},
	}
	if custom {
		kinds = append(kinds, kind{widgets.WithVersion("v1"), "Widget", "default", nil})
	}
	return kinds
}

type kind struct {
	schema.GroupVersionResource
	kind, namespace string
	fields          map[string]any
}

// object returns an object of the kind.
func (k kind) object(name, value string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range k.fields {
		o.Object[field] = value
	}
	o.SetAPIVersion(k.GroupVersion().String())
	o.SetKind(k.kind)
	o.SetNamespace(k.namespace)
	o.SetName(name)
	o.SetAnnotations(map[string]string{beat: value})
	return o
}

// traffic is one writer for each server. Nobody but a writer writes its objects, so it knows what they have to say.
type traffic struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// written has for each object what it may say: its last value that the API server accepted, and later ones of
	// requests without an answer. An empty value means that it was deleted.
	written map[string]*writing
	// accepted counts writes, and unanswered those that failed because a server was away.
	accepted, unanswered int
}

type writing struct {
	kind
	name   string
	values []string
}

// startTraffic writes through all servers until stop, or until the test ends.
func startTraffic(t *testing.T, c *cluster, custom bool) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &traffic{cancel: cancel, written: map[string]*writing{}}
	for _, server := range c.Servers() {
		client := clientOf(t, server)
		w.running.Go(func() {
			n := 0
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				w.write(ctx, t, client, server.Name(), n, kinds(custom))
				n++
			}, trafficInterval)
		})
	}
	t.Cleanup(w.stop)
	return w
}

func clientOf(t *testing.T, server *controlplane.APIServer) dynamic.Interface {
	t.Helper()
	config := server.Config("writer", framework.Masters)
	config.Timeout = trafficTimeout
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (w *traffic) stop() {
	w.cancel()
	w.running.Wait()
}

// write writes the n-th time through a server: another object each time.
func (w *traffic) write(
	ctx context.Context, t *testing.T, client dynamic.Interface, server string, n int, kinds []kind,
) {
	k := kinds[n%len(kinds)]
	object := w.object(k, fmt.Sprintf("%s-%d", server, n/len(kinds)%trafficNames))
	value := fmt.Sprint(n)
	if n%trafficLife == trafficLife-1 {
		value = ""
	}
	err := object.write(ctx, client, value)
	w.mu.Lock()
	defer w.mu.Unlock()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		object.values = []string{value}
		w.accepted++
	case errors.As(err, &status) && !isTransient(err):
		t.Errorf("writing %s %s through %s: %v", k.Resource, object.name, server, err)
	default:
		object.values = append(object.values, value)
		w.unanswered++
	}
}

// isTransient tells answers of servers that start or end.
func isTransient(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsUnexpectedServerError(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

func (w *traffic) object(k kind, name string) *writing {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := k.Resource + "/" + name
	if w.written[key] == nil {
		w.written[key] = &writing{kind: k, name: name, values: []string{""}}
	}
	return w.written[key]
}

// write patches the object, or creates it, or deletes it if the value is empty.
func (o *writing) write(ctx context.Context, client dynamic.Interface, value string) error {
	resource := client.Resource(o.GroupVersionResource).Namespace(o.namespace)
	if value == "" {
		err := resource.Delete(ctx, o.name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) && slices.Contains(o.values, "") {
			return nil
		}
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{beat: value}}})
	if err != nil {
		return err
	}
	_, err = resource.Patch(ctx, o.name, types.MergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) && slices.Contains(o.values, "") {
		_, err = resource.Create(ctx, o.object(o.name, value), metav1.CreateOptions{})
	}
	return err
}

// lost wants every server to show every object as its writer wrote it last.
func (w *traffic) lost(ctx context.Context, t *testing.T, c *cluster) {
	t.Helper()
	for _, server := range c.Servers() {
		client := clientOf(t, server)
		for _, object := range w.written {
			var value string
			got, err := client.Resource(object.GroupVersionResource).Namespace(object.namespace).
				Get(ctx, object.name, metav1.GetOptions{})
			switch {
			case err == nil && got.GetDeletionTimestamp() != nil && slices.Contains(object.values, ""):
				// API servers give VolumeAttributesClasses a finalizer, and the controller that removes it does not run.
			case err == nil:
				value = got.GetAnnotations()[beat]
			case !apierrors.IsNotFound(err):
				t.Errorf("%s does not show %s %s: %v", server.Name(), object.Resource, object.name, err)
				continue
			}
			if !slices.Contains(object.values, value) {
				t.Errorf("%s shows %s %s with %q, and its writer wrote %q", server.Name(), object.Resource, object.name, value,
					object.values)
			}
		}
	}
	t.Logf("traffic: %d writes of %d objects were accepted, %d had no answer", w.accepted, len(w.written), w.unanswered)
}
