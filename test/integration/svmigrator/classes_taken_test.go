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

package svmigrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testTakenVersion has an APIService hand the version of a custom resource to another server in the middle of a
// migration, and back. The other server has no objects, so the list of the migration ends there.
func testTakenVersion(t *testing.T, c *cluster) {
	const objects = 600
	r := newCustom("borrowings", "Borrowing")
	c.define(t, r)
	c.fill(t, r, "object", objects)
	c.flip(t, r, "v2")
	manager := c.startManager(t, "manager", "--migration-chunk-size=50", "--max-rewrites-per-second=10")
	c.migrate(t, r.String(), r.WithVersion(""))
	c.processed(t, r.String(), 50)

	c.handToAndFro(t, manager, r.WithVersion("v2"), r.kind, "true")
	m := c.ended(t, r.String(), soon)
	mustFail(t, m, v1alpha1.MigrationReasonAgreementLost)
	stored, err := c.Stored(t.Context(), r.GroupResource)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, object := range stored {
		if object.Encoding == r.encoding("v1") {
			left++
		}
	}
	if versions := c.storedVersions(t, r); left == 0 || !slices.Contains(versions, "v1") {
		t.Errorf("the definition lists %v, and %d objects are stored in v1", versions, left)
	}
}

// testTakenBuiltIn does the same with a built-in resource that the trigger has migrated. What the other server said of
// its objects must not count: all of them are written after that. No API server has an informer of them.
func testTakenBuiltIn(t *testing.T, c *cluster) {
	const objects = 150
	resource := policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
	for i := range objects {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("budget-%d", i)}}
		_, err := c.Kube.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault).
			Create(t.Context(), budget, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	gr := resource.GroupResource()
	manager := c.startManager(t, "manager", "--controllers=*", "--auto-migrate="+gr.String(), "--migration-chunk-size=50",
		"--max-rewrites-per-second=10")
	framework.Eventually(t, soon, func(ctx context.Context) error {
		all, err := c.Migrations().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, m := range all.Items {
			if m.GroupResource() == gr && m.Status.Progress != nil && m.Status.Progress.Processed >= 50 {
				return nil
			}
		}
		return errors.New("no migration has got to 50 objects")
	})
	back := c.handToAndFro(t, manager, resource, "PodDisruptionBudget", "onstart")
	framework.Eventually(t, soon, func(ctx context.Context) error {
		state, err := c.States().Get(ctx, gr.String(), metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(state.Status.Conditions, v1alpha1.StorageStateMigrated) {
			err = fmt.Errorf("it is not migrated: %+v", state.Status.Conditions)
		}
		return err
	})
	counts, err := c.Requests(patchesOfManager(gr, back))
	if err != nil || counts.Total() < objects {
		t.Errorf("%d of %d objects were rewritten after the other server was gone: %v", counts.Total(), objects, err)
	}
}

// handToAndFro hands the version of a resource to a server without objects, waits until the manager has noticed, and
// hands it back, which is not before the time that it returns. automanaged is the label that says who keeps the
// APIService of the API server itself.
func (c *cluster) handToAndFro(
	t *testing.T, manager *controlplane.Process, resource schema.GroupVersionResource, kind, automanaged string,
) (back time.Time) {
	t.Helper()
	service := c.emptyServer(t, resource, kind)
	read := func() int { return strings.Count(manager.Log(), "Read the discovery document of an aggregated server") }
	before := read()
	c.handVersion(t, resource.GroupVersion(), service, "")
	time.Sleep(2 * slowDocument)
	framework.Eventually(t, soon, func(context.Context) error { // The manager may be slow too.
		if read() == before {
			return errors.New("the manager has not noticed the other server")
		}
		return nil
	})
	back = time.Now()
	c.handVersion(t, resource.GroupVersion(), nil, automanaged)
	return back
}

// slowDocument is how long a server needs for its discovery document. Requests for objects reach it all the time.
const slowDocument = 2 * time.Second

// emptyServer starts a server that serves a resource but has no objects, and returns the spec of a service in front of
// it.
func (c *cluster) emptyServer(t *testing.T, r schema.GroupVersionResource, kind string) map[string]any {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var answer any = metav1.APIResourceList{GroupVersion: r.GroupVersion().String(), APIResources: []metav1.APIResource{
			{Name: r.Resource, Kind: kind, Namespaced: true, Verbs: metav1.Verbs{"get", "list", "patch", "update"}},
		}}
		code := http.StatusOK
		switch {
		case strings.HasSuffix(request.URL.Path, "/"+r.Resource):
			answer = metav1.PartialObjectMetadataList{
				TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			}
		case strings.Contains(request.URL.Path, "/"+r.Resource+"/"):
			code = http.StatusNotFound
			status := apierrors.NewNotFound(r.GroupResource(), path.Base(request.URL.Path)).Status()
			status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			answer = status
		default:
			select {
			case <-time.After(slowDocument):
			case <-request.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := "empty-of-" + r.Resource
	if _, err := c.Kube.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: at.Hostname()},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(at.Port(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{"namespace": metav1.NamespaceDefault, "name": name, "port": port}
}

// handVersion has the APIService of a version lead to a service, or to the API server itself if there is none. An
// APIService with a label is kept as it was by Kubernetes.
func (c *cluster) handVersion(t *testing.T, gv schema.GroupVersion, service map[string]any, label string) {
	t.Helper()
	var automanaged any
	if label != "" {
		automanaged = label
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"kube-aggregator.kubernetes.io/automanaged": automanaged}},
		"spec":     map[string]any{"service": service, "insecureSkipTLSVerify": service != nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	apiServices := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	name := gv.Version + "." + gv.Group
	if _, err := c.Dynamic.Resource(apiServices).Patch(
		t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
}
