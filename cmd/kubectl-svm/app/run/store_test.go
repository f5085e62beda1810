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
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func widgetsMigration() *migrationv1alpha1.StorageVersionMigration {
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "1"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"}
	return m
}

func TestFiles(t *testing.T) {
	kept, m := files{t.TempDir()}, widgetsMigration()
	if err := kept.save(m); err != nil {
		t.Fatal(err)
	}
	if read, err := kept.load(m.GroupResource()); err != nil || read != nil {
		t.Fatalf("nothing was done, and the file has %v, %v", read, err)
	}
	started := metav1.Now().Rfc3339Copy()
	m.Status.StartTime, m.Status.Target = &started, &migrationv1alpha1.MigrationTarget{StorageVersionHash: "v2"}
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{ContinueToken: "token", Processed: 10, Rewritten: 10}
	if err := kept.save(m); err != nil {
		t.Fatal(err)
	}
	read, err := kept.load(m.GroupResource())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, read); diff != "" {
		t.Errorf("the file has another migration (-want +got):\n%s", diff)
	}
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationSucceeded, Status: corev1.ConditionTrue},
	}
	if err := kept.save(m); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept.path(m.GroupResource())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the migration has ended, and its file is still there: %v", err)
	}
}

// TestProgressThatCannotBeSaved has a folder where the file should be, so the file cannot be renamed into place.
func TestProgressThatCannotBeSaved(t *testing.T) {
	o, m := &Options{StateDir: t.TempDir()}, widgetsMigration()
	path := files{o.StateDir}.path(m.GroupResource())
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancelCause(t.Context())
	s := newStore(o.saver(stop))
	s.add(m)
	m.ResourceVersion, m.Status.StartTime = "1", ptr.To(metav1.Now())
	m.Status.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: "v2"}
	if _, err := s.UpdateStatus(t.Context(), m, metav1.UpdateOptions{}); !errors.Is(err, errNotSaved) {
		t.Errorf("the migrator gets the error %v", err)
	}
	cause := fmt.Sprint(context.Cause(running))
	for _, want := range []string{path, "--state-dir", "--resume"} {
		if !strings.Contains(cause, want) {
			t.Errorf("the run ends with %q, which does not say %s", cause, want)
		}
	}
	if left, err := os.ReadDir(o.StateDir); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v, %v, want nothing new", left, err)
	}
}

func TestStore(t *testing.T) {
	saved := 0
	s := newStore(func(*migrationv1alpha1.StorageVersionMigration) error { saved++; return nil })
	s.add(widgetsMigration())
	client := s.MigrationV1alpha1().StorageVersionMigrations()
	watched, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	m, err := client.Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Status.BaselineResourceVersion = "7"
	written, err := client.UpdateStatus(t.Context(), m, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", "7"} {
		event := <-watched.ResultChan()
		if got := event.Object.(*migrationv1alpha1.StorageVersionMigration).Status.BaselineResourceVersion; got != want {
			t.Errorf("the watch says %q, want %q", got, want)
		}
	}
	if _, err := client.UpdateStatus(t.Context(), m, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old version ends with %v", err)
	}
	if written.ResourceVersion == m.ResourceVersion || saved != 1 {
		t.Errorf("the resource version is %s, and %d were saved", written.ResourceVersion, saved)
	}
	m.Name = "others"
	if _, err := client.UpdateStatus(t.Context(), m, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an update of what does not exist ends with %v", err)
	}
	_, err = s.MigrationV1alpha1().StorageStates().Get(t.Context(), "x", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("reading a StorageState ends with %v", err)
	}
}
