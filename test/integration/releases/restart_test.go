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

package releases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// record is where what servers say is to be written, for tests of package observer.
var record = flag.String("record", "", "the folder that gets what servers say before and after a restart")

// recordedMetrics are some of the metrics: those before and behind the one that tells when the process started.
var recordedMetrics = map[string]bool{
	"aggregator_discovery_aggregation_count_total": true, "apiserver_audit_event_total": true,
	"apiserver_audit_requests_rejected_total": true, "workqueue_adds_total": true,
}

// TestRestart has a server of Kubernetes 1.34 restart, and finds that nothing changes but the start of the process.
func TestRestart(t *testing.T) {
	binary, err := controlplane.Binary(oldServer)
	if err != nil {
		t.Fatal(err)
	}
	cp := controlplane.Start(t, controlplane.Config{
		Hosts: true, Servers: []controlplane.Server{{Binary: binary, AllowAll: true}},
	})
	c := &cluster{Cluster: framework.Use(t, cp, cp.Config("admin", framework.Masters))}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		slices, err := c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err == nil && len(slices.Items) == 0 {
			err = errors.New("the server has no address")
		}
		return err
	})
	lease := c.lease(t)
	before := c.whatItSays(t)
	if err := c.Servers()[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Servers()[0].Restart(nil); err != nil {
		t.Fatal(err)
	}
	if now := c.lease(t); now != lease {
		t.Errorf("the Lease is %s, and was %s", now, lease)
	}
	after := c.whatItSays(t)
	if bytes.Equal(before["metrics.pb"], after["metrics.pb"]) {
		t.Error("the metrics do not tell one process from the next")
	}
	if *record == "" {
		return
	}
	for when, files := range map[string]map[string][]byte{"before": before, "after": after} {
		for name, content := range files {
			path := filepath.Join(*record, when, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// whatItSays returns what an observer reads, by the name of the file that is to have it.
func (c *cluster) whatItSays(t *testing.T) map[string][]byte {
	t.Helper()
	lease, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), c.Servers()[0].Identity(),
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice, err := c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(t.Context(), "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lease.ManagedFields, slice.ManagedFields = nil, nil
	return map[string][]byte{
		"lease.json": marshal(t, lease), "endpointslice.json": marshal(t, slice),
		"version.json": c.get(t, "/version", ""), "metrics.pb": c.metrics(t),
	}
}

// metrics returns some of the metrics as the server writes them.
func (c *cluster) metrics(t *testing.T) []byte {
	t.Helper()
	const accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	all, kept := bytes.NewReader(c.get(t, "/metrics", accept)), &bytes.Buffer{}
	for {
		family := &dto.MetricFamily{}
		err := protodelim.UnmarshalFrom(all, family)
		switch {
		case errors.Is(err, io.EOF):
			return kept.Bytes()
		case err != nil:
			t.Fatal(err)
		case recordedMetrics[family.GetName()]:
			if _, err := protodelim.MarshalTo(kept, family); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (c *cluster) get(t *testing.T, path, accept string) []byte {
	t.Helper()
	client, err := rest.HTTPClientFor(c.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.AdminConfig.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("getting %s: %s, %v", path, response.Status, err)
	}
	return content
}

func marshal(t *testing.T, object any) []byte {
	t.Helper()
	content, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(content, '\n')
}
