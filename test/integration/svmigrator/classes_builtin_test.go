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
	"fmt"
	"maps"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

var (
	policies = schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: "mutatingadmissionpolicies"}
	secrets  = schema.GroupResource{Resource: "secrets"}
)

const (
	policyCount = 20
	secretCount = 60
)

// testBuiltIn upgrades a server that writes policies in another encoding from then on, and secrets under another key.
func testBuiltIn(t *testing.T) {
	c := startCluster(t, controlplane.Server{
		EmulatedVersion: "1.36", RuntimeConfig: []string{"api/all=true"}, EncryptionConfig: samples.Encryption("key1"),
	})
	manager := c.startManager(t, "manager", "--migration-chunk-size=25")
	ofPolicies := c.Kube.AdmissionregistrationV1().MutatingAdmissionPolicies()
	absent := schema.GroupVersionResource{Group: "absent.migration.test", Version: "v1", Resource: "absents"}
	for i := range policyCount {
		policy := samples.Policy(fmt.Sprintf("policy-%02d", i), absent)
		if _, err := ofPolicies.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ofSecrets := c.Kube.CoreV1().Secrets(metav1.NamespaceDefault)
	for i := range secretCount {
		name := fmt.Sprintf("secret-%03d", i)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"name": name}}
		if _, err := ofSecrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.restart(t, func(s *controlplane.Server) {
		s.EmulatedVersion, s.EncryptionConfig = "", samples.Encryption("key2", "key1")
	})
	if !manager.Running() {
		t.Fatal("the manager ended with the server")
	}
	t.Run("a new storage version", func(t *testing.T) { testNewVersion(t, c) })
	t.Run("a new key", func(t *testing.T) { testNewKey(t, c) })
}

func testNewVersion(t *testing.T, c *cluster) {
	judge := c.judge(t, policies)
	judge.stored(t, "admissionregistration.k8s.io/v1beta1")
	c.migrate(t, "policies", policies.WithVersion(""))
	m := c.ended(t, "policies", soon)
	mustSucceed(t, m)
	judge.stored(t, "admissionregistration.k8s.io/v1")
	if changes := judge.onlyEncodings(t, 1); len(changes.Encoded) != policyCount {
		t.Errorf("%d policies are encoded otherwise than before", len(changes.Encoded))
	}
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: policyCount})
	if got := m.Status.Target.EncodingVersion; got != "admissionregistration.k8s.io/v1" {
		t.Errorf("the target is %q", got)
	}
}

// testNewKey wants every secret under the new key, though the encoding they are stored in is the one that they were
// stored in before. testKeys takes old keys away.
func testNewKey(t *testing.T, c *cluster) {
	judge := c.judge(t, secrets)
	underKeys(t, c, map[string]int{"aescbc:v1:key1": secretCount})
	c.migrate(t, "secrets", secrets.WithVersion(""))
	m := c.ended(t, "secrets", 2*soon)
	mustSucceed(t, m)
	underKeys(t, c, map[string]int{"aescbc:v1:key2": secretCount})
	if changes := judge.onlyEncodings(t, 1); len(changes.Encoded) != secretCount {
		t.Errorf("%d secrets are encrypted otherwise than before", len(changes.Encoded))
	}
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: secretCount})

	t.Run("nothing is left to do", func(t *testing.T) {
		judge := c.judge(t, secrets)
		c.migrate(t, "secrets-again", secrets.WithVersion("v1"))
		m := c.ended(t, "secrets-again", 2*soon)
		mustSucceed(t, m)
		judge.onlyEncodings(t, 0)
		progress(t, m, v1alpha1.MigrationProgress{AlreadyCurrent: secretCount})
	})
}

// underKeys counts secrets by what they are encrypted with.
func underKeys(t *testing.T, c *cluster, want map[string]int) {
	t.Helper()
	stored, err := c.Stored(t.Context(), secrets)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, secret := range stored {
		got[secret.Provider]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("the secrets are stored under %v, want %v", got, want)
	}
}

func (c *cluster) restart(t *testing.T, change func(*controlplane.Server)) {
	t.Helper()
	if err := c.Servers()[0].Restart(change); err != nil {
		t.Fatal(err)
	}
}
