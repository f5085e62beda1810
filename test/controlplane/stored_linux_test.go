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

package controlplane

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"sigs.k8s.io/svm-controller-manager/pkg/stored"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

var (
	secrets         = schema.GroupResource{Resource: "secrets"}
	mutatingPolices = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}
)

// storedServer is what testStored needs. It also needs the objects that RBAC makes.
func storedServer() Server {
	return Server{
		EmulatedVersion: "1.36", RuntimeConfig: []string{"api/all=true"}, EncryptionConfig: samples.Encryption("key1"),
	}
}

// testStored compares what Stored tells with what the API server does, which it restarts as another release.
func testStored(t *testing.T, cp *ControlPlane) {
	client := clientFor(t, cp.AdminConfig())

	createTestCRD(t, cp, "v1alpha1")
	createUnusual(t, client)
	t.Run("every object of every resource is found", func(t *testing.T) { checkEveryResource(t, cp) })
	t.Run("a custom resource keeps its hash in another encoding", func(t *testing.T) { checkCustomResource(t, cp) })
	t.Run("a count goes on after a compaction", func(t *testing.T) { checkCompaction(t, cp) })
	t.Run("a resource without objects, or unknown, has none", func(t *testing.T) {
		for _, gr := range []schema.GroupResource{
			{Group: "batch", Resource: "jobs"}, {Group: "no.such", Resource: "things"}, {Resource: "masterleases"},
		} {
			objects, err := cp.Stored(t.Context(), gr)
			must(t, err)
			if len(objects) > 0 {
				t.Errorf("%s has %v", gr, objects)
			}
		}
	})

	ofSecrets := client.CoreV1().Secrets("default")
	ofPolicies := client.AdmissionregistrationV1().MutatingAdmissionPolicies()
	_, err := ofSecrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "sealed"}, StringData: map[string]string{"password": "opensesame"},
	}, metav1.CreateOptions{})
	must(t, err)
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	_, err = ofPolicies.Create(t.Context(), samples.Policy("policy", pods), metav1.CreateOptions{})
	must(t, err)
	secretBefore, policyBefore := storedOnly(t, cp, secrets, "sealed"), storedOnly(t, cp, mutatingPolices, "policy")

	must(t, cp.Servers()[0].Restart(func(s *Server) {
		s.EmulatedVersion = ""
		s.EncryptionConfig = samples.Encryption("key2", "key1")
	}))
	rewrite := []byte("{}")
	_, err = ofSecrets.Patch(t.Context(), "sealed", types.MergePatchType, rewrite, metav1.PatchOptions{})
	must(t, err)
	_, err = ofPolicies.Patch(t.Context(), "policy", types.MergePatchType, rewrite, metav1.PatchOptions{})
	must(t, err)
	secretAfter, policyAfter := storedOnly(t, cp, secrets, "sealed"), storedOnly(t, cp, mutatingPolices, "policy")

	t.Run("an encrypted secret is read with the keys that servers have or had", func(t *testing.T) {
		expectStored(t, secretBefore, "/registry/secrets/default/sealed", "v1", "aescbc:v1:key1", 1)
		expectStored(t, secretAfter, "/registry/secrets/default/sealed", "v1", "aescbc:v1:key2", 2)
		expectSameContent(t, secretBefore, secretAfter)
	})
	t.Run("a built-in keeps its hash in another encoding", func(t *testing.T) {
		const key = "/registry/mutatingadmissionpolicies/policy"
		expectStored(t, policyBefore, key, "admissionregistration.k8s.io/v1beta1", "", 1)
		expectStored(t, policyAfter, key, "admissionregistration.k8s.io/v1", "", 2)
		expectSameContent(t, policyBefore, policyAfter)
	})
	t.Run("an encrypted secret without its key is named by its etcd key", func(t *testing.T) {
		stranger := &decoder{cancel: func() {}}
		prefixes, revision, err := cp.storagePrefixes(t.Context(), stranger, secrets)
		must(t, err)
		var found []string
		for _, prefix := range prefixes {
			objects, err := cp.readPrefix(t.Context(), stranger, prefix, revision)
			must(t, err)
			for _, o := range objects {
				if o.Encoding != "" || o.ContentHash != "" {
					t.Errorf("%s was read without its key: %s", o.Key, o.Encoding)
				}
				found = append(found, o.Namespace+"/"+o.Name+" "+o.Provider)
			}
		}
		if !slices.Contains(found, "default/sealed aescbc:v1:key2") {
			t.Errorf("found only %v", found)
		}
	})
}

// checkCompaction compacts etcd while its objects are counted, after some keys of a folder of its own.
func checkCompaction(t *testing.T, cp *ControlPlane) {
	const keys = 120
	client := cp.Etcd().Client()
	for i := range keys {
		_, err := client.Put(t.Context(), fmt.Sprintf("/compacted/things/%03d", i), `{"apiVersion":"v1","kind":"Thing"}`)
		must(t, err)
	}
	compacted := false
	survey, err := stored.Count(t.Context(), client, stored.CountOptions{Prefix: "/compacted"}, func(int64) {
		if compacted {
			return
		}
		compacted = true
		written, err := client.Put(t.Context(), "/compacted/things/000", `{"apiVersion":"v1","kind":"Thing"}`)
		must(t, err)
		_, err = client.Compact(t.Context(), written.Header.Revision)
		must(t, err)
	})
	must(t, err)
	if !compacted || survey.First >= survey.Last || len(survey.Tallies) != 1 || survey.Tallies[0].Objects != keys {
		t.Errorf("from revision %d to %d it found %+v, want %d objects", survey.First, survey.Last, survey.Tallies, keys)
	}
	_, err = client.Delete(t.Context(), "/compacted/", clientv3.WithPrefix())
	must(t, err)
}

func expectStored(t *testing.T, o StoredObject, key, encoding, provider string, version int64) {
	t.Helper()
	want := StoredObject{Key: key, Encoding: encoding, Provider: provider, Version: version}
	got := StoredObject{Key: o.Key, Encoding: o.Encoding, Provider: o.Provider, Version: o.Version}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored object (-want +got):\n%s", diff)
	}
}

func expectSameContent(t *testing.T, a, b StoredObject) {
	t.Helper()
	if a.ContentHash == "" || a.ContentHash != b.ContentHash {
		t.Errorf("the content's hash was %q and became %q:\n%q\n%q", a.ContentHash, b.ContentHash, a.Raw, b.Raw)
	}
	changes := CompareStored([]StoredObject{a}, []StoredObject{b})
	if err := changes.OnlyEncodings(); err != nil || a.WholeHash == "" || changes.Writes[a.Key] != 1 {
		t.Errorf("one write that changed the encoding only looks like %+v: %v\n%q\n%q", changes, err, a.Raw, b.Raw)
	}
	if a.ModRevision >= b.ModRevision || a.CreateRevision != b.CreateRevision {
		t.Errorf("revisions were %d, %d and became %d, %d", a.CreateRevision, a.ModRevision, b.CreateRevision, b.ModRevision)
	}
}

func checkCustomResource(t *testing.T, cp *ControlPlane) {
	oxen := dynamicFor(t, cp).Resource(testResource).Namespace("default")
	createTestOx(t, cp, "berta")
	before := storedOnly(t, cp, testResource.GroupResource(), "berta")
	expectStored(t, before, "/registry/example.com/oxen/default/berta", "example.com/v1alpha1", "", 1)

	client, err := apiextensions.NewForConfig(cp.AdminConfig())
	must(t, err)
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	crd, err := crds.Get(t.Context(), testResource.GroupResource().String(), metav1.GetOptions{})
	must(t, err)
	crd.Spec = testCRD("v1").Spec
	_, err = crds.Update(t.Context(), crd, metav1.UpdateOptions{})
	must(t, err)
	var after StoredObject
	eventually(t, "writes are stored as v1", func(ctx context.Context) error {
		if _, err := oxen.Patch(ctx, "berta", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err != nil {
			return err
		}
		if after = storedOnly(t, cp, testResource.GroupResource(), "berta"); after.Encoding != "example.com/v1" {
			return fmt.Errorf("it is still stored as %s", after.Encoding)
		}
		return nil
	})
	expectStored(t, after, before.Key, "example.com/v1", "", 2)
	expectSameContent(t, before, after)

	heavier := []byte(`{"spec":{"weight":9007199254740994}}`)
	_, err = oxen.Patch(t.Context(), "berta", types.MergePatchType, heavier, metav1.PatchOptions{})
	must(t, err)
	changed := storedOnly(t, cp, testResource.GroupResource(), "berta")
	if changed.ContentHash == after.ContentHash || changed.WholeHash == after.WholeHash {
		t.Error("a change in the last digit does not change the hash")
	}

	// Another manager claims what is there already.
	_, err = oxen.Apply(t.Context(), "berta", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": testResource.GroupVersion().String(), "kind": "Ox", "metadata": map[string]any{"name": "berta"},
		"spec": map[string]any{"horns": int64(2)},
	}}, metav1.ApplyOptions{FieldManager: "another"})
	must(t, err)
	claimed := storedOnly(t, cp, testResource.GroupResource(), "berta")
	if claimed.ContentHash != changed.ContentHash || claimed.WholeHash == changed.WholeHash {
		t.Errorf("a change of managedFields alone must change the whole hash, and it alone:\n%q\n%q",
			changed.Raw, claimed.Raw)
	}
}

// createUnusual creates objects of the resources that are not stored where their names suggest.
func createUnusual(t *testing.T, client *kubernetes.Clientset) {
	t.Helper()
	ctx, create, name := t.Context(), metav1.CreateOptions{}, metav1.ObjectMeta{Name: "unusual"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	_, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: name}, create)
	must(t, err)
	_, err = client.CoreV1().PodTemplates("default").Create(ctx, &corev1.PodTemplate{
		ObjectMeta: name, Template: template,
	}, create)
	must(t, err)
	_, err = client.CoreV1().ReplicationControllers("default").Create(ctx, &corev1.ReplicationController{
		ObjectMeta: name, Spec: corev1.ReplicationControllerSpec{Selector: map[string]string{"a": "b"}, Template: &template},
	}, create)
	must(t, err)
	_, err = client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: name, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, create)
	must(t, err)
	err = client.CoreV1().RESTClient().Post().Namespace("default").Resource("endpoints").
		Body([]byte(`{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"unusual"}}`)).Do(ctx).Error()
	must(t, err)
	_, err = client.NetworkingV1().Ingresses("default").Create(ctx, &networkingv1.Ingress{
		ObjectMeta: name, Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}},
		}},
	}, create)
	must(t, err)
	_, err = client.CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: name, InvolvedObject: corev1.ObjectReference{Namespace: "default"},
	}, create)
	must(t, err)
}

// checkEveryResource compares etcd with what the API says there is, for all that can be listed.
func checkEveryResource(t *testing.T, cp *ControlPlane) {
	client, err := metadata.NewForConfig(cp.AdminConfig())
	must(t, err)
	lists, err := clientFor(t, cp.AdminConfig()).Discovery().ServerPreferredResources()
	must(t, err)
	withObjects := 0
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "create"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, resource := range list.APIResources {
			gvr := version.WithResource(resource.Name)
			eventually(t, gvr.String(), func(ctx context.Context) error {
				listed, err := client.Resource(gvr).List(ctx, metav1.ListOptions{})
				if apierrors.IsMethodNotSupported(err) {
					return nil
				}
				if err != nil {
					return err
				}
				stored, err := cp.Stored(ctx, gvr.GroupResource())
				if err != nil {
					return err
				}
				if len(stored) > 0 {
					withObjects++
				}
				return compareStored(listed, stored)
			})
		}
	}
	// What a new control plane makes by itself, and what createUnusual does.
	if withObjects < 20 {
		t.Errorf("only %d resources have objects", withObjects)
	}
}

func compareStored(listed *metav1.PartialObjectMetadataList, stored []StoredObject) error {
	var want, got []string
	for _, o := range listed.Items {
		want = append(want, o.Namespace+"/"+o.Name+" "+o.ResourceVersion)
	}
	for _, o := range stored {
		got = append(got, fmt.Sprintf("%s/%s %d", o.Namespace, o.Name, o.ModRevision))
		if o.Encoding == "" || o.ContentHash == "" {
			return fmt.Errorf("%s cannot be read: %q", o.Key, o.Raw)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("objects by the API and in etcd (-want +got):\n%s", diff)
	}
	return nil
}
