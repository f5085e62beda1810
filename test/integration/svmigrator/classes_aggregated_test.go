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
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

var flunders = schema.GroupResource{Group: controlplane.SampleGroup, Resource: "flunders"}

const flunderCount = 30

// testAggregated migrates a resource of an aggregated server, of which nobody tells when it changes.
func testAggregated(t *testing.T, c *cluster) {
	sample, err := c.StartSampleServer(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sample.Stop() })
	c.createFlunders(t)
	c.storeAs(t, flunders, "v1beta1")
	judge := c.judge(t, flunders)
	judge.stored(t, controlplane.SampleGroup+"/v1beta1")

	const poll = 10 * time.Second
	manager := c.startManager(t, "manager", "--poll-interval="+poll.String())
	c.migrate(t, "flunders", flunders.WithVersion(""))
	m := c.ended(t, "flunders", soon)
	mustSucceed(t, m)
	judge.stored(t, controlplane.SampleGroup+"/v1alpha1")
	if changes := judge.onlyEncodings(t, 1); len(changes.Encoded) != flunderCount {
		t.Errorf("%d flunders are encoded otherwise than before", len(changes.Encoded))
	}
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: flunderCount})
	if source := m.Status.Evidence.Source; source != v1alpha1.EvidenceFromAggregatedDiscovery {
		t.Errorf("the agreement is known from %s", source)
	}
	framework.StopManager(t, manager)

	t.Run("a change that was not looked at yet", func(t *testing.T) { testAggregatedChange(t, c) })
}

func (c *cluster) createFlunders(t *testing.T) {
	t.Helper()
	client := c.Dynamic.Resource(flunders.WithVersion("v1beta1")).Namespace(metav1.NamespaceDefault)
	for i := range flunderCount {
		flunder := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": controlplane.SampleGroup + "/v1beta1", "kind": "Flunder",
			"metadata": map[string]any{
				"name":   fmt.Sprintf("flunder-%02d", i),
				"labels": map[string]any{"number": fmt.Sprint(i)},
			},
		}}
		framework.Create(t, soon, client, flunder) // The aggregator may not reach the server at once.
	}
}

// testAggregatedChange has an aggregated server write another encoding than it did when the manager looked, which is
// long before it looks again. The sample server cannot, so what it says about itself is spoilt on the way.
func testAggregatedChange(t *testing.T, c *cluster) {
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	manager := c.startProcess(
		t, framework.Process{Name: "far-manager", Config: gate.Config(framework.ManagerUser, framework.Masters)},
	)
	framework.Eventually(t, soon, func(context.Context) error {
		for _, version := range []string{"v1alpha1", "v1beta1"} {
			read := fmt.Sprintf(`Read the discovery document of an aggregated server.* groupVersion="%s/%s".* failure="" `,
				flunders.Group, version)
			if !regexp.MustCompile(read).MatchString(manager.Log()) {
				return fmt.Errorf("the manager has not looked at %s of the aggregated server", version)
			}
		}
		return nil
	})
	hash := discovery.StorageVersionHash(flunders.Group, "v1beta1", "Flunder")
	c.forgeHash(t, gate, hash)
	c.migrate(t, "flunders-of-today", flunders.WithVersion(""))
	m := c.ended(t, "flunders-of-today", soon)
	mustSucceed(t, m)
	if got := m.Status.Target.StorageVersionHash; got != hash {
		t.Errorf("the migration went by what the server wrote before, %s: %s", got, words(m))
	}
	framework.StopManager(t, manager)

	t.Run("a server that stores nothing", func(t *testing.T) { testAggregatedWithoutStorage(t, c, gate) })
}

// testAggregatedWithoutStorage wants a migration to fail whose resource has no hash, as a server publishes none for
// resources that it makes up from others.
func testAggregatedWithoutStorage(t *testing.T, c *cluster, gate *controlplane.Interceptor) {
	c.forgeHash(t, gate, "")
	c.startProcess(
		t, framework.Process{Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters)},
	)
	c.migrate(t, "made-up", flunders.WithVersion(""))
	m := c.ended(t, "made-up", soon)
	mustFail(t, m, v1alpha1.MigrationReasonInvalidResource, flunders.String(), "publishes no storage version")
}

// forgeHash has clients of the gate read another hash in the documents of the sample server.
func (c *cluster) forgeHash(t *testing.T, gate *controlplane.Interceptor, hash string) {
	t.Helper()
	documents := map[string]string{}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		path := "/apis/" + flunders.WithVersion(version).GroupVersion().String()
		var document metav1.APIResourceList
		if err := c.Kube.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).Into(&document); err != nil {
			t.Fatal(err)
		}
		for i := range document.APIResources {
			if document.APIResources[i].Name == flunders.Resource {
				document.APIResources[i].StorageVersionHash = hash
			}
		}
		raw, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		documents[path] = string(raw)
	}
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		document, forged := documents[r.URL.Path]
		if !forged {
			return controlplane.Verdict{}
		}
		return controlplane.Verdict{
			Status: http.StatusOK,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   document,
		}
	})
}

// storeAs puts objects into etcd as a server of another version would have stored them. The sample server has no flag
// for its storage version. It is for versions that call the fields of these objects alike.
func (c *cluster) storeAs(t *testing.T, resource schema.GroupResource, version string) {
	t.Helper()
	stored, err := c.Stored(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range stored {
		fields := map[string]any{}
		if err := json.Unmarshal(object.Raw, &fields); err != nil {
			t.Fatalf("reading %s: %v", object.Key, err)
		}
		fields["apiVersion"] = resource.WithVersion(version).GroupVersion().String()
		raw, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Etcd().Client().Put(t.Context(), object.Key, string(raw)); err != nil {
			t.Fatal(err)
		}
	}
	if len(stored) == 0 || !strings.HasSuffix(stored[0].Key, stored[0].Name) {
		t.Fatalf("found %d objects of %s in etcd", len(stored), resource)
	}
}
