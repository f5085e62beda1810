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

package run

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

// A server below 1.35 keeps its Lease when it restarts. The command asks one server for its version, so it relies on
// Leases only if no other server can be that old.
func TestOriginContinues(t *testing.T) {
	for answer, want := range map[string]bool{"v1.34.2": false, "v1.35.0": false, "v1.36.0": true, "v1.37.1": true} {
		client := fake.NewClientset()
		client.Discovery().(*discoveryfake.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: answer}
		lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: "apiserver-a", UID: "1", Labels: map[string]string{observer.IdentityLabel: "kube-apiserver"},
		}}
		lease.Spec.HolderIdentity = ptr.To("a")
		client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &coordinationv1.LeaseList{
				ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []coordinationv1.Lease{lease},
			}, nil
		})
		o := &Options{}
		o.Clients = &cli.Clients{Kube: client, Discovery: client.Discovery()}
		current, err := o.currentOrigin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := widgetsMigration()
		current.stamp(m)
		if got := current.continues(m); got != want {
			t.Errorf("a server of %s answers: progress counts: %t, want %t", answer, got, want)
		}
		lease.UID = "2"
		if current, err = o.currentOrigin(t.Context()); err != nil || current.continues(m) {
			t.Errorf("a server of %s answers, and progress counts after a restart (error %v)", answer, err)
		}
	}
}

// TestMetricsAreForbidden has a user who may list what is observed, and may not read how large etcd's database is.
func TestMetricsAreForbidden(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1"}`))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	for growth, want := range map[int64]bool{0: false, 128 << 20: true} {
		streams, _, _, errOut := genericiooptions.NewTestIOStreams()
		o := &Options{}
		o.Migrator.MaxStorageGrowth, o.Env = growth, &cli.Env{IOStreams: streams}
		o.Clients = &cli.Clients{
			Metadata: metadata.NewForConfigOrDie(config), Discovery: discovery.NewDiscoveryClientForConfigOrDie(config),
		}
		err := o.checkReads(t.Context())
		warns := strings.HasPrefix(errOut.String(), "Warning: --max-storage-growth has no effect: getting /metrics: ")
		if err != nil || warns != want {
			t.Errorf("--max-storage-growth=%d: got the error %v and the warning %q", growth, err, errOut)
		}
	}
}
