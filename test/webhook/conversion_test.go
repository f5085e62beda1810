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

package webhook

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const testTimeout = 10 * time.Minute

var oxen = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "oxen"}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// herd is oxen that weigh in v1 and have mass in v2, stored as v1.
type herd struct {
	hook   *Hook
	v1, v2 dynamic.ResourceInterface
}

func newHerd(t *testing.T, cp *controlplane.ControlPlane, hook *Hook) herd {
	t.Helper()
	definition := samples.Definition(oxen.GroupResource(), "Ox", "v1", "v1", "v2")
	definition.Spec.Conversion = hook.CustomResourceConversion()
	definitions, err := apiextensions.NewForConfig(cp.AdminConfig())
	must(t, err)
	created := definitions.ApiextensionsV1().CustomResourceDefinitions()
	_, err = created.Create(t.Context(), definition, metav1.CreateOptions{})
	must(t, err)
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	must(t, err)
	framework.Eventually(t, testTimeout, func(ctx context.Context) error {
		for _, version := range []string{"v1", "v2"} {
			if _, err := client.Resource(oxen.GroupResource().WithVersion(version)).List(ctx, metav1.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	return herd{
		hook: hook,
		v1:   client.Resource(oxen).Namespace("default"),
		v2:   client.Resource(oxen.GroupResource().WithVersion("v2")).Namespace("default"),
	}
}

func (h herd) create(t *testing.T, name string) {
	t.Helper()
	_, err := h.v1.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Ox", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"weight": int64(9007199254740993), "horns": int64(2)},
	}}, metav1.CreateOptions{})
	must(t, err)
}

// mass reads an ox as v2, which takes a conversion.
func (h herd) mass(ctx context.Context, name string) error {
	ox, err := h.v2.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	mass, _, _ := unstructured.NestedInt64(ox.Object, "spec", "mass")
	horns, _, _ := unstructured.NestedInt64(ox.Object, "spec", "horns")
	_, stale, _ := unstructured.NestedFieldNoCopy(ox.Object, "spec", "weight")
	if ox.GetAPIVersion() != "example.com/v2" || mass != 9007199254740993 || horns != 2 || stale {
		return fmt.Errorf("it was converted to %v", ox.Object)
	}
	return nil
}

// broken expects that an ox cannot be read as v2, for a reason, and still as what it is stored in.
func (h herd) broken(t *testing.T, name, reason string) {
	t.Helper()
	if err := h.mass(t.Context(), name); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("without conversion: %v, want %q", err, reason)
	}
	_, err := h.v1.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
}

// TestOnDemand has its API server on a host of its own, as the tests of several servers have.
func TestOnDemand(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Config{Hosts: true, Servers: []controlplane.Server{{AllowAll: true}}})
	t.Run("conversion", func(t *testing.T) { testConversion(t, cp) })
	t.Run("validation", func(t *testing.T) { testValidation(t, cp) })
}

func testConversion(t *testing.T, cp *controlplane.ControlPlane) {
	server := Start(t, cp.ListenAddress())
	herd := newHerd(t, cp, server.Conversion(RenamedField(map[string]string{"v1": "weight", "v2": "mass"})))
	herd.create(t, "berta")
	herd.create(t, "egon")
	must(t, herd.mass(t.Context(), "berta"))

	t.Run("a read as stored asks nobody, another asks once", func(t *testing.T) {
		asked := 0
		// The API server fills a cache after the first read of a version, and asks the hook for that as well.
		for try := 0; try < 5 && asked != 1; try++ {
			before := herd.hook.Requests()
			_, err := herd.v1.Get(t.Context(), "berta", metav1.GetOptions{})
			must(t, err)
			must(t, herd.mass(t.Context(), "berta"))
			asked = herd.hook.Requests() - before
		}
		if asked != 1 {
			t.Errorf("the hook was asked %d times", asked)
		}
	})
	t.Run("it fails and recovers", func(t *testing.T) {
		herd.hook.Behave(Behaviour{Fail: true})
		herd.broken(t, "berta", "told to fail")
		herd.hook.Behave(Behaviour{})
		must(t, herd.mass(t.Context(), "berta"))
	})
	t.Run("it refuses one object, with a message", func(t *testing.T) {
		herd.hook.Behave(Behaviour{Refuse: map[string]string{"berta": "berta does not change"}})
		herd.broken(t, "berta", "berta does not change")
		must(t, herd.mass(t.Context(), "egon"))
		herd.hook.Behave(Behaviour{})
	})
	t.Run("the port is closed and opened again", func(t *testing.T) {
		url := herd.hook.URL()
		must(t, server.Close())
		must(t, server.Close())
		herd.broken(t, "berta", "connection refused")
		must(t, server.Reopen())
		must(t, server.Reopen())
		must(t, herd.mass(t.Context(), "berta"))
		if herd.hook.URL() != url {
			t.Errorf("the hook moved from %s to %s", url, herd.hook.URL())
		}
	})
	t.Run("what hangs is answered when it may be", func(t *testing.T) { checkHang(t, herd) })
	t.Run("what hangs ends with the server", func(t *testing.T) { checkHangAndClose(t, herd, server) })
	t.Run("it takes its time", func(t *testing.T) {
		const delay = 300 * time.Millisecond
		herd.hook.Behave(Behaviour{Delay: delay})
		began := time.Now()
		must(t, herd.mass(t.Context(), "berta"))
		if took := time.Since(began); took < delay {
			t.Errorf("the answer came after %v", took)
		}
	})
}

// inBackground begins to read an ox as v2 and returns when the hook holds that back.
func (h herd) inBackground(t *testing.T, name string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- h.mass(t.Context(), name) }()
	framework.Eventually(t, testTimeout, func(context.Context) error {
		if h.hook.Waiting() == 0 {
			return fmt.Errorf("of %d requests none waits", h.hook.Requests())
		}
		return nil
	})
	return ended
}

func checkHang(t *testing.T, herd herd) {
	herd.hook.Behave(Behaviour{Hang: true})
	ended := herd.inBackground(t, "berta")
	select {
	case err := <-ended:
		t.Fatalf("a read ended while the hook hangs: %v", err)
	default:
	}
	herd.hook.Behave(Behaviour{})
	must(t, <-ended)
	if waiting := herd.hook.Waiting(); waiting != 0 {
		t.Errorf("%d requests wait", waiting)
	}
}

func checkHangAndClose(t *testing.T, herd herd, server *Server) {
	herd.hook.Behave(Behaviour{Hang: true})
	ended := herd.inBackground(t, "berta")
	must(t, server.Close())
	if err := <-ended; err == nil {
		t.Error("a read succeeded without the answer to its conversion")
	}
	herd.hook.Behave(Behaviour{})
	must(t, server.Reopen())
	must(t, herd.mass(t.Context(), "berta"))
}
