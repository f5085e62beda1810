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
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	// keySecrets is how many secrets there are, one of which the API server denies to rewrite.
	keySecrets   = 20
	deniedSecret = "secret-07"
	// keySettle is long enough to restart a server, and to migrate all secrets after that, on a busy machine.
	keySettle = 90 * time.Second
	// confirmation is much more than the five seconds in which a process must not leave after the look that counted it,
	// or an epoch begins. A busy machine records a look later than it logs what was read.
	confirmation = 15 * time.Second
)

// ofSecrets has the tools for custom resources work on secrets.
var ofSecrets = custom{GroupResource: secrets, kind: "Secret"}

// keyRing is the encryption configuration of a server.
type keyRing struct {
	*cluster
	file string
}

// testKeys rotates encryption keys while the trigger has migrations of the same resource.
func testKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	c := &keyRing{file: file}
	c.use(t, "key1")
	c.cluster = startCluster(t, controlplane.Server{ExtraArgs: []string{
		"--encryption-provider-config=" + file, "--encryption-provider-config-automatic-reload=true",
	}})
	for i := range keySecrets {
		c.create(t, fmt.Sprintf("secret-%02d", i))
	}
	t.Run("a retry of denied objects", func(t *testing.T) { testRetryBesidePerson(t, c) })
	t.Run("last writes with the old key", func(t *testing.T) { testLastWritesBesideTrigger(t, c) })
}

// testRetryBesidePerson changes the key without a restart, so that the epoch stays the same. A person then creates a
// migration, and the trigger retries the one object that its last migration could not rewrite. The retry must not end
// the migration of the person.
func testRetryBesidePerson(t *testing.T, c *keyRing) {
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.seal(t, ofSecrets, fmt.Sprintf("object.metadata.name == '%s'", deniedSecret), deniedSecret)
	manager := c.startProcess(t, framework.Process{
		Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters),
		Args: []string{"--controllers=*", "--auto-migrate=secrets"},
	})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return c.saysMigrated(ctx, ofSecrets, v1alpha1.StateReasonMigrationFailed)
	})
	c.unseal(t, ofSecrets, deniedSecret)
	earlier := c.migrationsOf(t, ofSecrets)
	c.use(t, "key2", "key1")
	c.awaitKey(t, "key2")

	retry := holdFirstRead(t, gate, earlier)
	c.patchState(t, `{"spec":{"retryToken":"the policy is gone"}}`)
	name := retry.held(t)
	c.migrate(t, "person", secrets.WithVersion(""))
	c.reports(t, "person", v1alpha1.MigrationWaiting, corev1.ConditionTrue, v1alpha1.MigrationReasonQueued, soon)
	retry.release()

	m := c.ended(t, name, soon)
	mustSucceed(t, m)
	if p := m.Status.Progress; p == nil || p.Rewritten > 1 { // 0 if the answer to the first PATCH request was lost
		t.Errorf("%s rewrote more than the object that was denied", words(m))
	}
	m = c.ended(t, "person", soon)
	mustSucceed(t, m)
	c.allUnder(t, "key2")
	framework.StopManager(t, manager)
}

// testLastWritesBesideTrigger restarts the server with another key. The migration of a person waits for writes that the
// server accepted before it ended. One of the trigger need not wait, and must not end that of the person.
func testLastWritesBesideTrigger(t *testing.T, c *keyRing) {
	manager := c.startManager(t, "patient-manager", "--controllers=*", "--auto-migrate=-*",
		"--settle-period="+keySettle.String())
	framework.AwaitRead(t, soon, manager, c.Servers()...) // The state may be that of an earlier manager.
	time.Sleep(confirmation)
	before := c.awaitState(t, agreed)
	// After one that failed because of denied objects, one of the trigger would rewrite only these.
	if err := c.Migrations().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	old := c.raw(t, "secret-00")
	c.use(t, "key3", "key2")
	if err := c.Servers()[0].Stop(); err != nil {
		t.Fatal(err)
	}
	settled := time.Now().Add(keySettle)
	c.restart(t, nil)
	c.migrate(t, "waiting-person", secrets.WithVersion(""))
	framework.Eventually(t, soon, func(ctx context.Context) error {
		m, err := c.fetch(ctx, "waiting-person")
		if err != nil {
			return err
		}
		waiting := condition(m, v1alpha1.MigrationWaiting)
		waits := waiting != nil && waiting.Reason == v1alpha1.MigrationReasonAwaitingAgreement
		tooLate := m.Status.StartTime != nil && time.Now().After(settled) // to see it wait, on a busy machine
		if !waits && !tooLate {
			err = fmt.Errorf("%s does not wait", words(m))
		}
		return err
	})
	// The trigger deletes a migration of its own that belongs to an earlier epoch. If the restart took long, as on a busy
	// machine, one has begun.
	state := c.awaitState(t, restartedSince(before))
	c.migrateWith(t, "of-trigger", secrets.WithVersion(""), func(m *v1alpha1.StorageVersionMigration) {
		m.Spec.Target = &v1alpha1.MigrationTarget{
			StorageVersionHash: state.Status.CurrentStorageVersionHash,
			EncodingVersion:    state.Status.CurrentEncodingVersion,
			Epoch:              &state.Status.Epoch, StorageStateUID: state.UID,
		}
	})
	mustSucceed(t, c.ended(t, "of-trigger", soon))
	if time.Now().Before(settled.Add(-keySettle / 2)) {
		// This is the last write of the server that ended: it lands now.
		if _, err := c.Etcd().Client().Put(t.Context(), old.Key, string(old.Raw)); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Log("that took so long that no write with the old key landed after it")
	}
	m := c.ended(t, "waiting-person", soon)
	mustSucceed(t, m)
	if m.Status.StartTime.Time.Before(settled) {
		t.Errorf("%s began before the writes with the old key had ended, at %v", words(m), settled)
	}
	c.allUnder(t, "key3")
}

// use makes these the keys of the server. The server encrypts with the first one.
func (c *keyRing) use(t *testing.T, keys ...string) {
	t.Helper()
	if err := os.WriteFile(c.file+".new", []byte(samples.Encryption(keys...)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.file+".new", c.file); err != nil {
		t.Fatal(err)
	}
}

func (c *keyRing) create(t *testing.T, name string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.Kube.CoreV1().Secrets(metav1.NamespaceDefault).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitKey waits until the server encrypts with the key. A server reads its configuration once a minute.
func (c *keyRing) awaitKey(t *testing.T, key string) {
	t.Helper()
	client := c.Kube.CoreV1().Secrets(metav1.NamespaceDefault)
	c.create(t, "probe")
	framework.Eventually(t, soon, func(ctx context.Context) error {
		patch := fmt.Appendf(nil, `{"data":{"time":"%x"}}`, time.Now().UnixNano())
		_, err := client.Patch(ctx, "probe", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
		if provider := c.raw(t, "probe").Provider; provider != "aescbc:v1:"+key {
			return fmt.Errorf("the server writes with %s", provider)
		}
		return nil
	})
}

// raw returns a secret as it is stored.
func (c *keyRing) raw(t *testing.T, name string) controlplane.StoredObject {
	t.Helper()
	stored, err := c.Stored(t.Context(), secrets)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range stored {
		if strings.HasSuffix(secret.Key, "/"+name) {
			return secret
		}
	}
	t.Fatalf("there is no secret %s", name)
	return controlplane.StoredObject{}
}

// allUnder wants all secrets to be encrypted with the key.
func (c *keyRing) allUnder(t *testing.T, key string) {
	t.Helper()
	underKeys(t, c.cluster, map[string]int{"aescbc:v1:" + key: keySecrets + 1})
}

func (c *keyRing) patchState(t *testing.T, patch string) {
	t.Helper()
	_, err := c.States().Patch(
		t.Context(), secrets.String(), types.MergePatchType, []byte(patch), metav1.PatchOptions{},
	)
	if err != nil {
		t.Fatal(err)
	}
}

// awaitState waits until the check accepts the state of secrets, and returns the state.
func (c *keyRing) awaitState(t *testing.T, check func(*v1alpha1.StorageState) error) *v1alpha1.StorageState {
	t.Helper()
	var state *v1alpha1.StorageState
	framework.Eventually(t, soon, func(ctx context.Context) error {
		var err error
		if state, err = c.States().Get(ctx, secrets.String(), metav1.GetOptions{}); err != nil {
			return err
		}
		return check(state)
	})
	return state
}

// agreed accepts a state that says that the servers agree.
func agreed(state *v1alpha1.StorageState) error {
	if !meta.IsStatusConditionTrue(state.Status.Conditions, v1alpha1.StorageStateAgreed) {
		return fmt.Errorf("the servers do not agree: %v", state.Status.Conditions)
	}
	return nil
}

// restartedSince accepts a state that tells what the only server writes, and that this is another process than before.
func restartedSince(before *v1alpha1.StorageState) func(*v1alpha1.StorageState) error {
	processes := func(state *v1alpha1.StorageState) (incarnations []string) {
		for _, server := range state.Status.Evidence.Servers {
			incarnations = append(incarnations, server.Incarnation)
		}
		return incarnations
	}
	return func(state *v1alpha1.StorageState) error {
		were, are := processes(before), processes(state)
		if len(are) != 1 || slices.Equal(were, are) || state.Status.CurrentStorageVersionHash == v1alpha1.Unknown {
			return fmt.Errorf("the state is about the processes %q, before the restart %q, and %s is current", are, were,
				state.Status.CurrentStorageVersionHash)
		}
		return nil
	}
}

// unseal removes the policy of seal, and waits until the API server has noticed.
func (c *cluster) unseal(t *testing.T, r custom, object string) {
	t.Helper()
	rules := c.Kube.AdmissionregistrationV1()
	err := rules.ValidatingAdmissionPolicyBindings().Delete(t.Context(), r.Resource, metav1.DeleteOptions{})
	if err == nil {
		err = rules.ValidatingAdmissionPolicies().Delete(t.Context(), r.Resource, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return c.tryPatch(ctx, r, object, []byte("{}"))
	})
}

// heldRead is a request of a run that has got a slot and has not begun yet.
type heldRead struct {
	name    chan string
	release func()
}

// holdFirstRead holds back what a run reads first: its migration, unless that is one of the earlier ones.
func holdFirstRead(
	t *testing.T, gate *controlplane.Interceptor, earlier map[types.UID]v1alpha1.StorageVersionMigration,
) *heldRead {
	t.Helper()
	known := map[string]bool{}
	for _, m := range earlier {
		known[m.Name] = true
	}
	ctx, release := context.WithCancel(t.Context())
	h := &heldRead{name: make(chan string, 1), release: release}
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		_, name, found := strings.Cut(r.URL.Path, "/storageversionmigrations/")
		if !found || r.Method != http.MethodGet || known[name] {
			return controlplane.Verdict{}
		}
		select {
		case h.name <- name:
		default:
		}
		select {
		case <-ctx.Done():
		case <-r.Context().Done():
		}
		return controlplane.Verdict{}
	})
	return h
}

// held returns the name of the migration.
func (h *heldRead) held(t *testing.T) string {
	t.Helper()
	select {
	case name := <-h.name:
		return name
	case <-time.After(soon):
		t.Fatal("no migration has got a slot")
		return ""
	}
}
