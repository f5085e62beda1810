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

package cli

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// counted is a server whose documents of some versions cannot be read. It counts what it is asked.
type counted struct {
	*discoveryfake.FakeDiscovery
	away  []string
	asked chan string
}

func (c counted) ServerResourcesForGroupVersionWithContext(
	ctx context.Context, version string,
) (*metav1.APIResourceList, error) {
	c.asked <- version
	if slices.Contains(c.away, version) {
		return nil, errors.New("no endpoints")
	}
	return c.FakeDiscovery.ServerResourcesForGroupVersionWithContext(ctx, version)
}

// ofProxy answers with the 404 of a proxy if it is asked for an object of that name.
func ofProxy(name string) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		got := action.(clienttesting.GetAction)
		return got.GetName() == name, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "get",
			got.GetResource().GroupResource(), name, "<html>", 0, true)
	}
}

// TestLeaseThatNobodyFinds wants a lease to be absent only if the API server says so.
func TestLeaseThatNobodyFinds(t *testing.T) {
	client, lease := fake.NewClientset(), ManagerLease{types.NamespacedName{Namespace: "kube-system", Name: "manager"}}
	if found, err := (&Clients{Kube: client}).Lease(t.Context(), lease); found != nil || err != nil {
		t.Errorf("there is none: got %v and the error %v", found, err)
	}
	client.PrependReactor("get", "leases", ofProxy(lease.Name))
	if _, err := (&Clients{Kube: client}).Lease(t.Context(), lease); err == nil {
		t.Error("a proxy answers, and there is no error")
	}
}

func TestUnstored(t *testing.T) {
	served := func(version, hash string, names ...string) *metav1.APIResourceList {
		list := &metav1.APIResourceList{GroupVersion: version}
		for _, name := range names {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: name, Verbs: metav1.Verbs{"list", "patch"}, StorageVersionHash: hash,
			})
		}
		return list
	}
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{
		served("v1", "", "secrets"), // An API server may publish no hashes at all.
		served("example.com/v1", "a=", "widgets"),
		served("observed.example.com/v1", "", "relics"),
		served("project.example.com/v1", "", "projects"),
		served("away.example.com/v1", "", "ghosts"),
		served("project.example.com/v1beta1", "", "quotas"),
		served("mixed.example.com/v1", "", "tags"),
		served("custom.example.com/v1", "", "gadgets"), // Its storage version is not served.
		served("mixed.example.com/v1beta1", "m=", "images"),
		served("proxied.example.com/v1", "", "mirrors"), // A proxy answers for its definition.
		served("build.example.com/v1", "", "builds"),
		served("build.example.com/v1beta1", "b=", "builds"),
	}
	server := counted{client.Discovery().(*discoveryfake.FakeDiscovery), []string{"away.example.com/v1"},
		make(chan string, len(client.Resources))}
	catalog, err := Discover(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	relic := migrationv1alpha1.StorageState{}
	relic.Spec.Resource = migrationv1alpha1.GroupResource{Group: "observed.example.com", Resource: "relics"}
	cluster := &Cluster{Catalog: catalog, States: []migrationv1alpha1.StorageState{relic}}
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(definitions.GroupVersion().WithKind("CustomResourceDefinition"))
	definition.Name = "gadgets.custom.example.com"
	dynamic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), definition)
	dynamic.PrependReactor("get", definitions.Resource, ofProxy("mirrors.proxied.example.com"))
	(&Clients{Discovery: server, Dynamic: dynamic}).MarkUnstored(t.Context(), cluster)
	for names, want := range map[string]string{
		"all": "builds.build.example.com, gadgets.custom.example.com, ghosts.away.example.com, images.mixed.example.com, " +
			"mirrors.proxied.example.com, relics.observed.example.com, secrets, widgets.example.com",
		"*.mixed.example.com":   "images.mixed.example.com",
		"*.project.example.com": "projects.project.example.com, quotas.project.example.com", // Nothing else is left.
		"tags":                  "tags.mixed.example.com",
	} {
		resources, err := catalog.Resolve([]string{names})
		if got := join(resources); err != nil || got != want {
			t.Errorf("%s is %s and the error %v, want %s", names, got, err, want)
		}
	}
	close(server.asked)
	var asked []string
	for version := range server.asked {
		asked = append(asked, version)
	}
	slices.Sort(asked)
	const want = "away.example.com/v1 build.example.com/v1 build.example.com/v1beta1 custom.example.com/v1 " +
		"example.com/v1 " +
		"mixed.example.com/v1 mixed.example.com/v1beta1 project.example.com/v1 project.example.com/v1beta1 " +
		"proxied.example.com/v1"
	if got := strings.Join(asked, " "); got != want {
		t.Errorf("the server was asked for %s, want %s", got, want)
	}
}
