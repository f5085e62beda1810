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

package steer

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

func TestNothingToSuspend(t *testing.T) {
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
	cluster.Catalog.Add(schema.GroupResource{Resource: "secrets"})
	ended := migrationv1alpha1.StorageVersionMigration{}
	ended.Name, ended.Spec.Resource.Resource, ended.Spec.Suspend = "secrets-1", "secrets", true
	cluster.Migrations = []migrationv1alpha1.StorageVersionMigration{ended}
	for _, name := range []string{"secrets", "secrets-1"} {
		o := &options{}
		o.Names = []string{name}
		err := o.suspend(t.Context(), cluster)
		if err == nil || !strings.HasSuffix(err.Error(), cli.SVM+" pause secrets") {
			t.Errorf("suspend %s: %v", name, err)
		}
	}
}

// TestCompletion has a suspended migration and a paused resource.
func TestCompletion(t *testing.T) {
	m, paused := migrationv1alpha1.StorageVersionMigration{}, migrationv1alpha1.StorageState{}
	m.Name, m.Spec.Resource.Resource, m.Spec.Suspend = "secrets-1", "secrets", true
	paused.Name, paused.Spec.Paused = "widgets", true
	client := fake.NewClientset(&m, &paused, &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "pods"}})
	env := &cli.Env{Connect: func() (*cli.Clients, error) {
		return &cli.Clients{Migration: client.MigrationV1alpha1()}, nil
	}}
	for _, test := range []struct {
		verb verb
		want string
	}{{resume, "secrets secrets-1 widgets"}, {suspend, ""}} {
		names, _ := test.verb.complete(env)(&cobra.Command{}, nil, "")
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s completes to %q, want %q", test.verb.use, got, test.want)
		}
	}
}

// A migration may have the name of a resource. The name then means both.
func TestMigrationWithTheNameOfAResource(t *testing.T) {
	const (
		secrets = "storageversionmigration.migration.k8s.io/secrets "
		running = "storageversionmigration.migration.k8s.io/secrets-1 "
		state   = "storagestate.migration.k8s.io/secrets resumed\n"
	)
	for _, test := range []struct {
		name      string
		verb      func(*options, context.Context, *cli.Cluster) error
		resource  string // that of the migration "secrets"
		suspended bool
		want      string
	}{
		{"suspend", (*options).suspend, "secrets", false, secrets + "suspended\n" + running + "suspended\n"},
		{"resume", (*options).resume, "secrets", true, state + secrets + "resumed\n" + running + "resumed\n"},
		{"resume what is paused only", (*options).resume, "secrets", false, state},
		{"suspend, of another resource", (*options).suspend, "widgets", false,
			secrets + "suspended\n" + running + "suspended\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
			cluster.Catalog.Add(schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "widgets"})
			paused := migrationv1alpha1.StorageState{}
			paused.Name, paused.Spec.Resource.Resource, paused.Spec.Paused = "secrets", "secrets", true
			cluster.States = []migrationv1alpha1.StorageState{paused}
			client := fake.NewClientset(&paused)
			for name, resource := range map[string]string{"secrets": test.resource, "secrets-1": "secrets"} {
				m := migrationv1alpha1.StorageVersionMigration{}
				m.Name, m.Spec.Resource.Resource, m.Spec.Suspend = name, resource, test.suspended
				cluster.Migrations = append(cluster.Migrations, m)
				if err := client.Tracker().Add(&m); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			o := &options{}
			o.Env = &cli.Env{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: new(bytes.Buffer)}}
			o.Clients, o.Names = &cli.Clients{Migration: client.MigrationV1alpha1()}, []string{"secrets"}
			if err := test.verb(o, t.Context(), cluster); err != nil || out.String() != test.want {
				t.Errorf("got the error %v and\n%s\nwant\n%s", err, out.String(), test.want)
			}
		})
	}
}

// TestRetryBeforeTheFailureIsCounted has a failed migration of the trigger, and a state that does not know of it yet.
// There is nothing to retry if all is migrated, or if the migration was for an earlier epoch.
func TestRetryBeforeTheFailureIsCounted(t *testing.T) {
	const retried = "storagestate.migration.k8s.io/secrets retried\n"
	for _, test := range []struct {
		hash  string
		epoch int64
		uid   types.UID
		want  string
	}{{"old", 1, "", retried}, {"old", 2, "", ""}, {"old", 1, "of a state that was deleted", ""}, {"new", 1, "", ""}} {
		state, m := migrationv1alpha1.StorageState{}, migrationv1alpha1.StorageVersionMigration{}
		state.Name, state.Spec.Resource.Resource, m.Spec.Resource.Resource = "secrets", "secrets", "secrets"
		state.Status.CurrentStorageVersionHash, state.Status.PersistedStorageVersionHashes = "new", []string{test.hash}
		state.Status.Epoch = test.epoch
		m.Spec.Target = &migrationv1alpha1.MigrationTarget{Epoch: new(int64(1)), StorageStateUID: test.uid}
		m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
			{Type: migrationv1alpha1.MigrationFailed, Status: corev1.ConditionTrue}}
		cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{state},
			Migrations: []migrationv1alpha1.StorageVersionMigration{m}}
		cluster.Catalog.Add(state.GroupResource())
		client := fake.NewClientset(&state)
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		o := &options{}
		o.Env, o.Names = &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}, []string{"secrets"}
		o.Clients = &cli.Clients{Migration: client.MigrationV1alpha1()}
		if err := o.retry(t.Context(), cluster); err != nil || out.String() != test.want {
			t.Errorf("stored as %s in epoch %d: got the error %v and %q, want %q", test.hash, test.epoch, err, out, test.want)
		}
	}
}

// TestOthersGoOn names what does not exist, or cannot be changed, and something else.
func TestOthersGoOn(t *testing.T) {
	for _, test := range []struct {
		name string
		verb func(*options, context.Context, *cli.Cluster) error
		want string
	}{
		{"retry", (*options).retry, "storagestate.migration.k8s.io/secrets retried\n"},
		{"pause", (*options).pause, "storagestate.migration.k8s.io/secrets paused\n"},
		{"resume", (*options).resume, "storagestate.migration.k8s.io/secrets resumed\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
			client := fake.NewClientset()
			for _, name := range []string{"gadgets", "secrets"} {
				state := migrationv1alpha1.StorageState{}
				state.Name, state.Spec.Resource.Resource, state.Spec.Paused = name, name, test.name == "resume"
				state.Status.Backoff = &migrationv1alpha1.MigrationBackoff{}
				cluster.Catalog.Add(state.GroupResource())
				cluster.States = append(cluster.States, state)
				if name == "gadgets" { // Somebody has deleted it meanwhile.
					continue
				}
				if err := client.Tracker().Add(&state); err != nil {
					t.Fatal(err)
				}
			}
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			o := &options{}
			o.Env, o.Names = &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}, []string{"gadgets", "secrets"}
			o.Clients = &cli.Clients{Migration: client.MigrationV1alpha1()}
			if err := test.verb(o, t.Context(), cluster); !apierrors.IsNotFound(err) || out.String() != test.want {
				t.Errorf("got the error %v and\n%s\nwant\n%s", err, out, test.want)
			}
		})
	}
	t.Run("a name that nothing has", func(t *testing.T) {
		const want = "storagestate.migration.k8s.io/secrets resumed\n"
		paused := migrationv1alpha1.StorageState{}
		paused.Name, paused.Spec.Resource.Resource, paused.Spec.Paused = "secrets", "secrets", true
		cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{paused}}
		cluster.Catalog.Add(paused.GroupResource())
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		o := &options{}
		o.Env, o.Names = &cli.Env{IOStreams: streams}, []string{"nobody", "secrets"}
		o.Clients = &cli.Clients{Migration: fake.NewClientset(&paused).MigrationV1alpha1()}
		if err := o.resume(t.Context(), cluster); err == nil || out.String() != want {
			t.Errorf("got the error %v and\n%s\nwant\n%s", err, out, want)
		}
	})
}

// TestWhatIsLeftToDo wants a verb to say what it does not do, and which one does.
func TestWhatIsLeftToDo(t *testing.T) {
	running := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "secrets-1"}}
	running.Spec.Resource.Resource = "secrets"
	again := *running.DeepCopy()
	again.Spec.Target = &migrationv1alpha1.MigrationTarget{Epoch: new(int64(1))}
	kept := *again.DeepCopy()
	kept.UID, kept.DeletionTimestamp = "attempt", new(metav1.Now())
	other := *kept.DeepCopy()
	other.UID = "other"
	suspended := *again.DeepCopy()
	suspended.Spec.Suspend = true
	for name, test := range map[string]struct {
		verb       func(*options, context.Context, *cli.Cluster) error
		paused     bool
		reason     string
		migrations []migrationv1alpha1.StorageVersionMigration
		want       string
	}{
		"retry what is paused": {verb: (*options).retry, paused: true, want: "kubectl svm resume secrets\n"},
		"retry what --auto-migrate leaves out": {
			verb: (*options).retry, reason: migrationv1alpha1.StateReasonNotSelected, want: "kubectl svm migrate secrets\n",
		},
		"retry what runs": {
			verb: (*options).retry, migrations: []migrationv1alpha1.StorageVersionMigration{again},
			want: "secrets: the migration secrets-1 waits or runs, so there is nothing to retry. To follow it: kubectl svm " +
				"status secrets --watch\n",
		},
		"retry what is suspended": {
			verb: (*options).retry, migrations: []migrationv1alpha1.StorageVersionMigration{suspended},
			want: "secrets: the migration secrets-1 is suspended, so there is nothing to retry. To continue it: " +
				"kubectl svm resume secrets-1\n",
		},
		"retry while finalizers keep the last one": {
			verb: (*options).retry, migrations: []migrationv1alpha1.StorageVersionMigration{kept},
			want: "secrets: the migration secrets-1 is being deleted, and its finalizers keep it. The trigger creates another " +
				"one when they are removed: kubectl edit svm secrets-1\n",
		},
		"retry what --auto-migrate leaves out, while finalizers keep the last one": {
			verb: (*options).retry, reason: migrationv1alpha1.StateReasonNotSelected,
			migrations: []migrationv1alpha1.StorageVersionMigration{kept}, want: "kubectl svm migrate secrets\n",
		},
		"pause while finalizers keep the last one": {
			verb: (*options).pause, migrations: []migrationv1alpha1.StorageVersionMigration{kept},
		},
		"retry while finalizers keep an earlier one": {
			verb: (*options).retry, migrations: []migrationv1alpha1.StorageVersionMigration{other},
			want: "kubectl svm status secrets --watch\n",
		},
		"pause while a migration runs": {
			verb: (*options).pause, migrations: []migrationv1alpha1.StorageVersionMigration{running},
			want: "The migration secrets-1 continues. To stop it: kubectl svm suspend secrets-1\n",
		},
		"resume what goes on": {verb: (*options).resume, want: "secrets: nothing is paused or suspended.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			state := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "secrets"}}
			state.Spec.Resource.Resource, state.Spec.Paused = "secrets", test.paused
			state.Status.Backoff = &migrationv1alpha1.MigrationBackoff{}
			state.Status.Migration = &migrationv1alpha1.MigrationReference{UID: "attempt"}
			state.Status.Conditions = []metav1.Condition{
				{Type: migrationv1alpha1.StorageStateMigrated, Status: metav1.ConditionFalse, Reason: test.reason},
			}
			cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{state}}
			cluster.Catalog.Add(state.GroupResource())
			cluster.Migrations = test.migrations
			streams, _, _, errOut := genericiooptions.NewTestIOStreams()
			o := &options{}
			o.Env, o.Names = &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}, []string{"secrets"}
			o.ConnectionFlags = "--context=a"
			o.Clients = &cli.Clients{Migration: fake.NewClientset(&state).MigrationV1alpha1()}
			want := strings.NewReplacer("kubectl svm ", "kubectl svm --context=a ", "kubectl ", "kubectl --context=a ").
				Replace(test.want)
			if err := test.verb(o, t.Context(), cluster); err != nil || !strings.Contains(errOut.String(), want) ||
				want == "" && errOut.Len() > 0 {
				t.Errorf("got the error %v and %q, want %q", err, errOut, want)
			}
		})
	}
}
