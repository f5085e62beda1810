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

package observer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// TestReplicasOfAnAggregatedServer has a Service with two endpoints, which write different encodings. The API server
// sends each request to one of them.
func TestReplicasOfAnAggregatedServer(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{Hosts: true, Servers: []controlplane.Server{{AllowAll: true}}})
	if _, err := cp.StartSampleServer(t.Context(), "sample"); err != nil {
		t.Fatal(err)
	}
	r := newReplicated(t, cp)
	r.routeTo(t, r.endpoint(t, r.real, ""), r.endpoint(t, r.forgery(t, cp), ""))
	// There is no service network, so the API server chooses the endpoint.
	err := cp.Servers()[0].Restart(func(spec *controlplane.Server) {
		spec.ExtraArgs = []string{"--enable-aggregator-routing=true"}
	})
	if err != nil {
		t.Fatal(err)
	}
	config, fails := cp.Config(observerUser, "system:masters"), &atomic.Bool{}
	lists := &atomic.Int64{} // of endpoints, two in each poll: one for each version of the group
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if strings.HasSuffix(request.URL.Path, "/namespaces/"+r.service.Namespace+"/endpointslices") {
				lists.Add(1)
				if fails.Load() {
					return nil, errors.New("the list was cut")
				}
			}
			return next.RoundTrip(request)
		})
	})
	s := startObserver(t, config, observer.Options{PollInterval: time.Second})

	disagreeing := func(words string) func() error {
		return func() error {
			o := s.Observe(flunders)
			if last, _ := o.Last(); o.Problem == nil || !slices.Contains(last.Writing, storageversion.Unknown) {
				return fmt.Errorf("problem %v, written %q", o.Problem, last.Writing)
			}
			if !strings.Contains(o.Problem.Message, words) {
				return fmt.Errorf("no %q in %q", words, o.Problem.Message)
			}
			return nil
		}
	}
	never := func(t *testing.T, words string) {
		t.Helper()
		within(t, eventually, disagreeing(words))
		t.Log(s.Observe(flunders).Problem.Message)
		duringRequests(t, lists, 20, disagreeing(""))
	}
	t.Run("replicas that are no Pods", func(t *testing.T) { never(t, "do not name Pods") })
	t.Run("Pods of two ReplicaSets", func(t *testing.T) {
		r.routeTo(t, r.endpoint(t, r.real, "old"), r.endpoint(t, r.forgery(t, cp), "new"))
		never(t, "2 revisions")
	})
	t.Run("Pods of one ReplicaSet", func(t *testing.T) {
		r.routeTo(t, r.endpoint(t, r.real, "new"), r.endpoint(t, r.real, "new"))
		within(t, eventually, func() error { return s.complete(flunders, storageversion.Aggregated, 1) })
	})
	t.Run("a list that fails shows no rollout", func(t *testing.T) {
		fails.Store(true)
		duringRequests(t, lists, 10, func() error {
			if last, _ := ptrTo(s.Observe(flunders)).Last(); slices.Contains(last.Writing, storageversion.Unknown) {
				return fmt.Errorf("written is %q", last.Writing)
			}
			return nil
		})
		fails.Store(false)
		within(t, eventually, func() error { return s.complete(flunders, storageversion.Aggregated, 1) })
	})
	s.stop()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// replicated is a Service of which the test makes the endpoints.
type replicated struct {
	kube    kubernetes.Interface
	service *corev1.Service
	real    string // the address of the sample server
	pods    int
}

func newReplicated(t *testing.T, cp *controlplane.ControlPlane) *replicated {
	t.Helper()
	r := &replicated{kube: kubernetes.NewForConfigOrDie(cp.AdminConfig())}
	services, err := r.kube.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range services.Items {
		if service.Spec.Type == corev1.ServiceTypeExternalName {
			r.service = &service
		}
	}
	apiServices := dynamic.NewForConfigOrDie(cp.AdminConfig()).Resource(schema.GroupVersionResource{
		Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
	})
	// A forgery has a certificate of its own.
	patch := []byte(`{"spec":{"caBundle":null,"insecureSkipTLSVerify":true}}`)
	var apiService *unstructured.Unstructured
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		if apiService, err = apiServices.Patch(t.Context(), version+"."+controlplane.SampleGroup, types.MergePatchType,
			patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var fields struct {
		Spec struct{ Service struct{ Port int32 } }
	}
	raw, err := json.Marshal(apiService.Object)
	if err == nil {
		err = json.Unmarshal(raw, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	port := fields.Spec.Service.Port
	r.real = net.JoinHostPort(r.service.Spec.ExternalName, strconv.Itoa(int(port)))
	r.service.Spec = corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}}
	if r.service, err = r.kube.CoreV1().Services(r.service.Namespace).
		Update(t.Context(), r.service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// forgery starts a replica that says that it writes another encoding than the sample server, which cannot.
func (r *replicated) forgery(t *testing.T, cp *controlplane.ControlPlane) string {
	t.Helper()
	hash := storageversion.Hash(flunders.WithVersion("v1beta1").GroupVersion(), "Flunder")
	sample := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		version := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
		document := metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: controlplane.SampleGroup + "/" + version,
			APIResources: []metav1.APIResource{{
				Name: flunders.Resource, Kind: "Flunder", StorageVersionHash: hash,
				Verbs: metav1.Verbs{"list", "update", "patch"},
			}},
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(document)
	}))
	listener, err := net.Listen("tcp", net.JoinHostPort(cp.ListenAddress(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	_ = sample.Listener.Close()
	sample.Listener = listener
	sample.StartTLS()
	t.Cleanup(sample.Close)
	address, err := url.Parse(sample.URL)
	if err != nil {
		t.Fatal(err)
	}
	return address.Host
}

// endpoint is at an address, of a Pod of that ReplicaSet if one is named.
func (r *replicated) endpoint(t *testing.T, address, replicaSet string) *discoveryv1.EndpointSlice {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	r.pods++
	name := fmt.Sprintf("replica-%d", r.pods)
	endpoint := discoveryv1.Endpoint{Addresses: []string{host}}
	if replicaSet != "" {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: replicaSet, UID: types.UID(replicaSet), Controller: ptr.To(true),
			}}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "sample"}}},
		}
		if _, err := r.kube.CoreV1().Pods(r.service.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		endpoint.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: r.service.Namespace, Name: name}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: r.service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{endpoint},
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To(""), Port: ptr.To(int32(number)), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
}

// routeTo makes the Service lead to these endpoints and no others.
func (r *replicated) routeTo(t *testing.T, slices ...*discoveryv1.EndpointSlice) {
	t.Helper()
	api := r.kube.DiscoveryV1().EndpointSlices(r.service.Namespace)
	before, err := api.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range slices {
		if _, err := api.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, slice := range before.Items {
		if err := api.Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
