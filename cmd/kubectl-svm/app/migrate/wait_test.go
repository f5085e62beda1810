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

package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

type migrations = []migrationv1alpha1.StorageVersionMigration

func migration(
	name string, uid types.UID, condition migrationv1alpha1.MigrationConditionType,
) migrationv1alpha1.StorageVersionMigration {
	m := migrationv1alpha1.StorageVersionMigration{}
	m.Name, m.UID = name, uid
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: condition, Status: corev1.ConditionTrue}}
	return m
}

// TestWaitTimesOut waits for migrations that do not end.
func TestWaitTimesOut(t *testing.T) {
	o := &Options{Timeout: 10 * time.Millisecond}
	o.Env = &cli.Env{
		IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clocktesting.NewFakeClock(time.Unix(0, 0)),
	}
	o.Clients = &cli.Clients{Migration: fake.NewClientset().MigrationV1alpha1()}
	err := cli.Within(t.Context(), o.Timeout, func(ctx context.Context) error {
		created := migrations{migration("a", "1", ""), migration("b", "2", "")}
		return o.wait(ctx, &cli.Cluster{Catalog: &cli.Catalog{}}, created)
	})
	var out bytes.Buffer
	const want = "error: timed out after 10ms. These migrations continue: a, b.\n"
	o.ErrOut = &out
	if code := cli.ExitCode(err, o.Env); code != cli.ExitTimeout || out.String() != want {
		t.Errorf("got the exit code %d and %q, want %q", code, out.String(), want)
	}
}

// TestWaitTimesOutWithoutAPIServer has an API server go away for good.
func TestWaitTimesOutWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no route to host")
		})
		o := &Options{Timeout: time.Minute}
		o.Env = &cli.Env{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clock.RealClock{}}
		o.Clients = &cli.Clients{Migration: client.MigrationV1alpha1()}
		began := time.Now()
		err := cli.Within(t.Context(), o.Timeout, func(ctx context.Context) error {
			return o.wait(ctx, &cli.Cluster{Catalog: &cli.Catalog{}}, migrations{migration("a", "1", "")})
		})
		want := "timed out after 1m0s. These migrations continue: a. That is of " + began.Format(time.TimeOnly) +
			": the API server could not be read since."
		if err == nil || err.Error() != want {
			t.Errorf("got the error %v, want %s", err, want)
		}
	})
}

// TestWaitWithoutCredentials has the credentials expire.
func TestWaitWithoutCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, began := fake.NewClientset(), time.Now()
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewUnauthorized("expired")
		})
		o := &Options{}
		o.Env = &cli.Env{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clock.RealClock{}}
		o.Clients = &cli.Clients{Migration: client.MigrationV1alpha1()}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		created := migrations{migration("a", "1", ""), migration("b", "2", "")}
		err := o.wait(ctx, &cli.Cluster{Catalog: &cli.Catalog{}}, created)
		want := "log in again\nThese migrations continue: a, b. That is of " + began.Format(time.TimeOnly) +
			": the API server could not be read since."
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got the error %v, want at its end %s", err, want)
		}
	})
}

// TestOneCannotBeCreated wants the next one to be created, printed and waited for, without a watch of StorageStates.
func TestOneCannotBeCreated(t *testing.T) {
	a := migration("a", "1", migrationv1alpha1.MigrationSucceeded)
	client := fake.NewClientset(&a)
	client.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		m := action.(clienttesting.CreateAction).GetObject().(*migrationv1alpha1.StorageVersionMigration)
		if m.GroupResource().Resource == "gadgets" {
			return true, new(migration("a", "1", "")), nil // It has not ended yet.
		}
		return true, nil, errors.New("refused")
	})
	client.PrependWatchReactor("storagestates", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, errors.New("forbidden")
	})
	o := &Options{Wait: true}
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	o.Env, o.Output.Format = &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}, cli.JSON
	o.Clients = &cli.Clients{Migration: client.MigrationV1alpha1()}
	// A Reflector waits for a bookmark, which the fake client does not send, so the migration is there from the beginning.
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}, Migrations: migrations{a}}
	err := o.migrate(t.Context(), cluster, []schema.GroupResource{{Resource: "widgets"}, {Resource: "gadgets"}})
	if err == nil || err.Error() != "1 of 2 migrations were not created" ||
		!strings.Contains(errOut.String(), "Warning: creating a migration of widgets: refused\n") {
		t.Errorf("got the error %v and the notes %q", err, errOut)
	}
	var list migrationv1alpha1.StorageVersionMigrationList
	if err := json.Unmarshal(out.Bytes(), &list); err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" ||
		!list.Items[0].IsConditionTrue(migrationv1alpha1.MigrationSucceeded) {
		t.Errorf("got the error %v and printed %s", err, out)
	}
	if !strings.Contains(errOut.String(), "a: Succeeded") {
		t.Errorf("it was not waited for: %q", errOut)
	}
}

// TestLook looks at two migrations several times. The watch brings other migrations each time.
func TestLook(t *testing.T) {
	const (
		running   = migrationv1alpha1.MigrationRunning
		succeeded = migrationv1alpha1.MigrationSucceeded
		failed    = migrationv1alpha1.MigrationFailed
	)
	created := migrations{migration("a", "1", ""), migration("b", "2", "")}
	b, done := migration("b", "2", running), migration("b", "2", succeeded)
	kept := migration("a", "1", running)
	kept.DeletionTimestamp = new(metav1.Now())
	for _, test := range []struct {
		name    string
		seen    []migrations // by look
		stored  migrations   // what the API server has
		refused bool         // whether it does not answer
		left    string       // after the last look
		failed  int
		gone    string // in the error of the last look
	}{
		{"both run", []migrations{{migration("a", "1", running), b}}, nil, false, "a b", 0, ""},
		{"one ended well and was deleted", []migrations{{migration("a", "1", succeeded), b}, {b}}, nil, false, "b", 0, ""},
		{"one failed and was deleted", []migrations{{migration("a", "1", failed), b}, {b}, {done}}, nil, false, "", 1, ""},
		{"one was deleted while it ran", []migrations{{migration("a", "1", running), b}, {b}}, nil, false, "", 0,
			"migration a was deleted"},
		{"one was deleted, and its finalizers keep it", []migrations{{kept, b}}, nil, false, "", 0,
			"migration a was deleted before it had ended"},
		{"the watch has not brought one yet", []migrations{{b}}, created, false, "a b", 0, ""},
		{"one was deleted before the watch", []migrations{{b}}, nil, false, "", 0, "migration a was deleted"},
		{"another has its name", []migrations{{migration("a", "9", running), b}}, migrations{migration("a", "9", running)},
			false, "", 0, "migration a was deleted"},
		{"the API server does not answer", []migrations{{b}}, nil, true, "a b", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := fake.NewClientset()
			for i := range test.stored {
				if err := client.Tracker().Add(&test.stored[i]); err != nil {
					t.Fatal(err)
				}
			}
			if test.refused {
				client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, errors.New("no route to host")
				})
			}
			o := &Options{}
			o.Env = &cli.Env{
				IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clocktesting.NewFakeClock(time.Unix(0, 0)),
			}
			o.Clients = &cli.Clients{Migration: client.MigrationV1alpha1()}
			w := newWaiting(o)
			var err error
			for i, seen := range test.seen {
				if err != nil {
					t.Fatalf("look %d: %v", i, err)
				}
				err = w.look(t.Context(), &cli.Cluster{Migrations: seen}, created)
			}
			switch {
			case test.gone == "" && err != nil, test.gone != "" && (err == nil || !strings.Contains(err.Error(), test.gone)):
				t.Errorf("got the error %v, want %q", err, test.gone)
			case err == nil && (strings.Join(w.left, " ") != test.left || len(w.failed) != test.failed):
				t.Errorf("got left %v and %d failed, want %q and %d", w.left, len(w.failed), test.left, test.failed)
			}
		})
	}
}
