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
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

var flunders = schema.GroupResource{Group: controlplane.SampleGroup, Resource: "flunders"}

const flunderCount = 30

// testAggregated migrates a resource of an aggregated server, of which nobody tells when it changes.
func testAggregated(t *testing.T) {
	c := startCluster(t, controlplane.Server{})
	if _, err := c.StartSampleServer(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	client := c.Dynamic.Resource(flunders.WithVersion("v1beta1")).Namespace(metav1.NamespaceDefault)
	for i := range flunderCount {
		flunder := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": controlplane.SampleGroup + "/v1beta1", "kind": "Flunder",
			"metadata": map[string]any{"name": fmt.Sprintf("flunder-%02d", i), "labels": map[string]any{"number": fmt.Sprint(i)}},
		}}
		if _, err := client.Create(t.Context(), flunder, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.storeAs(t, flunders, "v1beta1")
	judge := c.judge(t, flunders)
	judge.stored(t, controlplane.SampleGroup+"/v1beta1")

	const poll = 10 * time.Second
	c.startManager(t, "manager", "--poll-interval="+poll.String())
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
}

// storeAs puts objects into etcd as a server of another version would have stored them. The sample server has no flag for
// its storage version. It is for versions that call the fields of these objects alike.
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
