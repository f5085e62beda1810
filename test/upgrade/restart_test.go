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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// TestRestart has the only server of each release killed and started again, and finds what tells one process from the
// next.
func TestRestart(t *testing.T) {
	for name, want := range map[string]facts{
		"1.34": {keepsLease: true},
		"1.35": {},
		"1.36": {address: true, statusz: true},
		"1.37": {address: true, statusz: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, controlplane.Config{
				Hosts: true, Servers: []controlplane.Server{{Binary: binary(t, name), AllowAll: true}},
			})
			framework.Eventually(t, soon, func(ctx context.Context) error {
				slices, err := c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
				if err == nil && len(slices.Items) == 0 {
					err = errors.New("the server has no address")
				}
				return err
			})
			lease, before := c.lease(t), c.whatItSays(t)
			if err := c.Servers()[0].Kill(); err != nil {
				t.Fatal(err)
			}
			if err := c.Servers()[0].Restart(nil); err != nil {
				t.Fatal(err)
			}
			after := c.whatItSays(t)
			if got := c.facts(t, lease); got != want {
				t.Errorf("a server of %s: %+v, want %+v", name, got, want)
			}
			if bytes.Equal(before["metrics.pb"], after["metrics.pb"]) {
				t.Error("the metrics do not tell one process from the next")
			}
			writeRecord(t, name, "before", before)
			writeRecord(t, name, "after", after)
		})
	}
}

// facts are what differs between releases.
type facts struct {
	// keepsLease says that a server takes over the identity Lease of the process before it, with uid and holder.
	keepsLease bool
	// address says that the Lease has the address that the server advertises.
	address bool
	// statusz says that the server serves /statusz.
	statusz bool
}

// facts are those of the only server. Its Lease was before what is given.
func (c *cluster) facts(t *testing.T, before string) facts {
	t.Helper()
	lease, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), c.Servers()[0].Identity(),
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Kube.Discovery().RESTClient().Get().AbsPath("/statusz").Do(t.Context()).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsNotAcceptable(err) {
		t.Fatal(err)
	}
	return facts{
		keepsLease: c.lease(t) == before, statusz: !apierrors.IsNotFound(err),
		address: lease.Annotations[corev1.AnnotationPeerAdvertiseAddress] != "",
	}
}

// writeRecord writes what a server said into a folder of its own, if that is asked for.
func writeRecord(t *testing.T, name, when string, files map[string][]byte) {
	t.Helper()
	if *record == "" {
		return
	}
	for file, content := range files {
		path := filepath.Join(*record, "restart-of-"+name, when, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
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
