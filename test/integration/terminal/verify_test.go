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

package terminal

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/verify"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	oldSecrets, newSecrets = 12, 5
	widgetCount            = 30
)

// TestVerify counts secrets under two keys and custom resources in two versions, and compares with StorageStates.
func TestVerify(t *testing.T) {
	t.Parallel()
	c := start(t, controlplane.Server{EncryptionConfig: samples.Encryption("team:1")}, controlplane.EtcdConfig{})
	c.InstallMigrationAPI(t)
	c.secrets(t, "old", oldSecrets)
	both := samples.Encryption("key2", "team:1")
	err := c.Servers()[0].Restart(func(s *controlplane.Server) { s.EncryptionConfig = both })
	if err != nil {
		t.Fatal(err)
	}
	c.secrets(t, "new", newSecrets)
	widgets := c.define(t, "widgets", "Widget", widgetCount)
	etcd := "--etcd-endpoints=" + c.Etcd().URL()

	t.Run("keys", func(t *testing.T) {
		var got verify.Result
		decode(t, c.svm(t.Context(), t, done, "", "verify", etcd, "-o=json", "secrets"), &got)
		want := []verify.Stored{
			{Resource: "secrets", Format: "encrypted", EncryptedWith: "aescbc:key2", Objects: newSecrets},
			{Resource: "secrets", Format: "encrypted", EncryptedWith: "aescbc:team", Objects: oldSecrets},
		}
		if diff := cmp.Diff(want, got.Stored); diff != "" {
			t.Errorf("stored (-want +got):\n%s", diff)
		}
	})
	t.Run("without keys", func(t *testing.T) {
		for key, code := range map[string]int{
			"aescbc:team:1": notSafe, "aescbc:team": notSafe, "aescbc:team:2": done,
			"aescbc:key2": notSafe, "aescbc:key3": done, "-": done, "key2": failed, "aesbcb:key2": failed,
		} {
			c.svm(t.Context(), t, code, "", "verify", etcd, "--without-key="+key, "secrets")
		}
		c.svm(t.Context(), t, notSafe, "", "verify", etcd, "--without-key=-", "configmaps")
		c.svm(t.Context(), t, failed, "", "verify", etcd, "--without-key=-", "ranges")
		c.svm(t.Context(), t, notSafe, "", "verify", etcd, "--without-key=aescbc:team:1") // all of etcd
		c.svm(t.Context(), t, done, "", "verify", etcd, "--without-key=aescbc:key3")
		// A state without objects: they may be in another etcd.
		empty := c.claim(t, schema.GroupResource{Group: "example.com", Resource: "gadgets"}, "v1")
		c.svm(t.Context(), t, done, "", "verify", etcd, empty.Name)
		c.svm(t.Context(), t, failed, "", "verify", etcd, "--without-key=aescbc:key1", empty.Name)
		if err := c.States().Delete(t.Context(), empty.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("without keys, and the StorageStates cannot be read", func(t *testing.T) {
		const prefix = "/encrypted"
		for _, key := range []string{"/migration.k8s.io/storagestates/secrets", "/secrets/default/one"} {
			if _, err := c.Etcd().Client().Put(t.Context(), prefix+key, "k8s:enc:aescbc:v1:key2:\x00"); err != nil {
				t.Fatal(err)
			}
		}
		asked := []string{"verify", etcd, "--prefix=" + prefix, "--server=http://127.0.0.1:1", "--without-key=aescbc:key1"}
		const proven = "No object of secrets is encrypted with aescbc:key1."
		out := c.svm(t.Context(), t, failed, "", append(asked, "secrets")...)
		if !strings.Contains(out, proven) {
			t.Errorf("it does not say %q:\n%s", proven, out)
		}
		for _, name := range []string{"secret", "widgets.example.com"} {
			out, errOut := c.svmBoth(t.Context(), t, failed, "", append(asked, name)...)
			if out != "" || !strings.Contains(errOut, "so this proves nothing about its encryption keys") {
				t.Errorf("nothing was found of %s, and it says:\n%s%s", name, out, errOut)
			}
		}
	})
	t.Run("everything", func(t *testing.T) {
		var got verify.Result
		decode(t, c.svm(t.Context(), t, done, "", "verify", etcd, "-o=json"), &got)
		answer, err := c.Etcd().Client().Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly(),
			clientv3.WithRev(got.FirstRevision))
		if err != nil {
			t.Fatal(err)
		}
		if got.Objects != answer.Count {
			t.Errorf("etcd has %d objects, and %d were counted", answer.Count, got.Objects)
		}
		for _, s := range got.Stored {
			if s.Format == "unreadable" {
				t.Errorf("%d objects of %s were not read", s.Objects, s.Resource)
			}
		}
		c.svm(t.Context(), t, done, "", "verify", etcd, "-o=wide")
	})
	t.Run("a state that claims too little", func(t *testing.T) {
		state := c.claim(t, widgets, "v1")
		var got verify.Result
		decode(t, c.svm(t.Context(), t, notSafe, "", "verify", etcd, "-o=json", "widgets.example.com"), &got)
		want := []stored.Unclaimed{
			{StorageState: state.Name, Claims: []string{v1}, Version: v1alpha1, Objects: widgetCount},
		}
		if diff := cmp.Diff(want, got.Unclaimed); diff != "" {
			t.Errorf("unclaimed (-want +got):\n%s", diff)
		}
		c.svm(t.Context(), t, notSafe, "", "verify", etcd)
		if err := c.States().Delete(t.Context(), state.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.claim(t, widgets, "v1alpha1", "v1")
		c.svm(t.Context(), t, done, "", "verify", etcd)
	})
	t.Run("a name of nothing", func(t *testing.T) {
		for _, name := range []string{"Secrets", "secret", "all", "widgets", "*.example.com"} {
			c.svm(t.Context(), t, failed, "", "verify", etcd, name)
		}
		c.svm(t.Context(), t, failed, "", "verify", etcd, "--prefix=/kubernetes.io", "secrets")
	})
	t.Run("bytes that are no object", func(t *testing.T) {
		const key = "/registry/example.com/widgets/default/broken"
		if _, err := c.Etcd().Client().Put(t.Context(), key, "\x00"); err != nil {
			t.Fatal(err)
		}
		c.svm(t.Context(), t, notSafe, "", "verify", etcd, "widgets.example.com")
		if _, err := c.Etcd().Client().Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("no etcd there", func(t *testing.T) {
		c.svm(t.Context(), t, failed, "", "verify", "--etcd-endpoints=http://127.0.0.1:1")
	})
}

func (c *cluster) secrets(t *testing.T, prefix string, n int) {
	t.Helper()
	for i := range n {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, i)}}
		_, err := c.Kube.CoreV1().Secrets(metav1.NamespaceDefault).Create(t.Context(), secret, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// claim creates a StorageState that says that objects are stored in these versions. The last one is the current one.
func (c *cluster) claim(t *testing.T, gr schema.GroupResource, versions ...string) *migrationv1alpha1.StorageState {
	t.Helper()
	state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: gr.String()}}
	state.Spec.Resource = migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	state, err := c.States().Create(t.Context(), state, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := &state.Status
	for _, version := range versions {
		gv := schema.GroupVersion{Group: gr.Group, Version: version}
		hash := storageversion.Hash(gv, "Widget")
		status.PersistedStorageVersionHashes = append(status.PersistedStorageVersionHashes, hash)
		status.PersistedEncodingVersions = append(status.PersistedEncodingVersions, gv.String())
		status.CurrentStorageVersionHash, status.CurrentEncodingVersion = hash, gv.String()
	}
	status.Epoch = 1
	if state, err = c.States().UpdateStatus(t.Context(), state, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return state
}
