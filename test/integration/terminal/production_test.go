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
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kms/pkg/service"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/verify"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	oldKey, newKey  = "2026-10", "2026-11"
	cborWidgetCount = 7
)

// TestVerifyAsInProduction reads an etcd that wants certificates. A plugin of KMS v2, whose key was rotated, encrypts
// Secrets and StorageStates, and new custom resources are stored as CBOR.
func TestVerifyAsInProduction(t *testing.T) {
	t.Parallel()
	keys := startKeyService(t)
	c := start(t, controlplane.Server{EncryptionConfig: keys.config}, controlplane.EtcdConfig{TLS: true})
	c.InstallMigrationAPI(t)
	c.secrets(t, "old", oldSecrets)
	widgets := c.define(t, "widgets", "Widget", widgetCount)
	keys.current.Store(newKey)
	err := c.Servers()[0].Restart(func(s *controlplane.Server) {
		s.FeatureGates = map[string]bool{"CBORServingAndStorage": true}
	})
	if err != nil {
		t.Fatal(err)
	}
	c.secrets(t, "new", newSecrets)
	c.widgets(t, widgets, cborWidgetCount)
	state := c.claim(t, widgets, "v1")

	ca, certificate, key := c.Etcd().ClientFiles()
	etcd := []string{"verify", "--etcd-endpoints=" + c.Etcd().SecureURL(), "--cacert=" + ca}
	certified := slices.Concat(etcd, []string{"--cert=" + certificate, "--key=" + key})

	t.Run("everything is counted", func(t *testing.T) {
		var got verify.Result
		names := []string{"secrets", "widgets.example.com", "storagestates." + migrationv1alpha1.GroupName}
		args := slices.Concat(certified, []string{"-o=json"}, names)
		decode(t, c.svm(t.Context(), t, notSafe, "", args...), &got)
		// The only StorageState is that of widgets.
		counted := []verify.Stored{
			{Resource: "secrets", Format: "encrypted", EncryptedWith: "kms:v2:vault key ID " + oldKey, Objects: oldSecrets,
				NoStorageState: true},
			{Resource: "secrets", Format: "encrypted", EncryptedWith: "kms:v2:vault key ID " + newKey, Objects: newSecrets,
				NoStorageState: true},
			{Resource: widgets.String(), Version: v1, Kind: "Widget", Format: "cbor", Objects: cborWidgetCount},
			{Resource: widgets.String(), Version: v1alpha1, Kind: "Widget", Format: "json", Objects: widgetCount},
			{Resource: names[2], Format: "encrypted", EncryptedWith: "kms:v2:vault key ID " + newKey, Objects: 1,
				NoStorageState: true},
		}
		if diff := cmp.Diff(counted, got.Stored); diff != "" {
			t.Errorf("stored (-want +got):\n%s", diff)
		}
		// The StorageStates are encrypted, so the API server tells what they claim.
		unclaimed := []stored.Unclaimed{
			{StorageState: state.Name, Claims: []string{v1}, Version: v1alpha1, Objects: widgetCount},
		}
		if diff := cmp.Diff(unclaimed, got.Unclaimed); diff != "" {
			t.Errorf("unclaimed (-want +got):\n%s", diff)
		}
	})
	t.Run("without keys", func(t *testing.T) {
		for key, code := range map[string]int{
			"kms:v2:vault": notSafe, "kms:v2:vault key ID " + oldKey: notSafe,
			"kms:v2:vault key ID none": done, "kms:v2:vaul": done, "kms:vault": failed,
		} {
			c.svm(t.Context(), t, code, "", slices.Concat(certified, []string{"--without-key=" + key, "secrets"})...)
		}
	})
	t.Run("all resources", func(t *testing.T) {
		if out := c.svm(t.Context(), t, notSafe, "", certified...); strings.Contains(out, "unreadable") {
			t.Error("something was not read")
		}
	})
	t.Run("without a certificate", func(t *testing.T) {
		if _, said := c.svmBoth(t.Context(), t, failed, "", etcd...); !strings.Contains(said, "certificate required") {
			t.Error("the error does not say that etcd wants a certificate")
		}
	})
	t.Run("with half a certificate", func(t *testing.T) {
		c.svm(t.Context(), t, failed, "", slices.Concat(etcd, []string{"--cert=" + certificate})...)
	})
	t.Run("without the API server that reads StorageStates", func(t *testing.T) {
		if err := c.Servers()[0].Stop(); err != nil {
			t.Fatal(err)
		}
		out, said := c.svmBoth(t.Context(), t, failed, "", certified...)
		if !strings.Contains(out, "Nothing was compared") || !strings.Contains(out, "kms:v2:vault key ID "+newKey) ||
			!strings.Contains(said, "the StorageStates are encrypted") {
			t.Error("it does not tell what it has counted, and why it compares nothing")
		}
		_, said = c.svmBoth(t.Context(), t, failed, "", slices.Concat(certified, []string{"gadgets.example.com"})...)
		if strings.Contains(said, "there is no StorageState of it") {
			t.Error("it says that there is no StorageState, and has read none")
		}
	})
}

// widgets creates n objects in the current version.
func (c *cluster) widgets(t *testing.T, gr schema.GroupResource, n int) {
	t.Helper()
	client := c.Dynamic.Resource(gr.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	for i := range n {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1, "kind": "Widget", "metadata": map[string]any{"name": fmt.Sprintf("new-%03d", i)},
		}}
		framework.Create(t, soon, client, object)
	}
}

// keyService is a plugin of KMS v2, which encrypts with its current key and decrypts with any.
type keyService struct {
	current atomic.Value // the identifier of the key
	config  string       // for API servers
}

func startKeyService(t *testing.T) *keyService {
	t.Helper()
	const timeout = time.Minute
	socket := filepath.Join(t.TempDir(), "kms")
	k := &keyService{config: fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, storagestates.%s]
  providers:
  - kms: {apiVersion: v2, name: vault, endpoint: "unix://%s", timeout: %s}
  - identity: {}
`, migrationv1alpha1.GroupName, socket, timeout)}
	k.current.Store(oldKey)
	server := service.NewGRPCService(socket, timeout, k)
	served := make(chan error)
	go func() { served <- server.ListenAndServe() }()
	t.Cleanup(func() {
		server.Close()
		if err := <-served; err != nil {
			t.Errorf("the plugin of KMS ended: %v", err)
		}
	})
	return k
}

func (k *keyService) id() string { return k.current.Load().(string) }

// Status tells the API server which key is the current one.
func (k *keyService) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.id()}, nil
}

// Encrypt seals with the current key.
func (k *keyService) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	id := k.id()
	sealer, err := sealerOf(id)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, sealer.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return &service.EncryptResponse{KeyID: id, Ciphertext: sealer.Seal(nonce, nonce, data, nil)}, nil
}

// Decrypt opens with the key that was the current one then.
func (k *keyService) Decrypt(_ context.Context, _ string, request *service.DecryptRequest) ([]byte, error) {
	sealer, err := sealerOf(request.KeyID)
	if err != nil {
		return nil, err
	}
	nonce, sealed := request.Ciphertext[:sealer.NonceSize()], request.Ciphertext[sealer.NonceSize():]
	return sealer.Open(nil, nonce, sealed, nil)
}

func sealerOf(keyID string) (cipher.AEAD, error) {
	material := sha256.Sum256([]byte(keyID)) // of the right length
	block, err := aes.NewCipher(material[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
