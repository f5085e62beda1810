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

package implementations

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	client "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

// migrationAPI is the API group migration.k8s.io, which this project and kube-storage-version-migrator have in common.
type migrationAPI struct {
	client client.MigrationV1alpha1Interface
	kube   kubernetes.Interface
}

func newMigrationAPI(config *rest.Config) (migrationAPI, error) {
	clients, err := versioned.NewForConfig(config)
	if err != nil {
		return migrationAPI{}, fmt.Errorf("making a client: %w", err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return migrationAPI{}, fmt.Errorf("making a client: %w", err)
	}
	return migrationAPI{clients.MigrationV1alpha1(), kube}, nil
}

// Knowledge reads a StorageState.
func (a migrationAPI) Knowledge(ctx context.Context, resource schema.GroupResource) (suite.Knowledge, error) {
	state, err := a.client.StorageStates().Get(ctx, nameOf(resource), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return suite.Knowledge{}, nil
	}
	if err != nil {
		return suite.Knowledge{}, fmt.Errorf("getting a StorageState: %w", err)
	}
	return suite.Knowledge{
		Recorded: true, Current: state.Status.CurrentStorageVersionHash,
		Persisted: state.Status.PersistedStorageVersionHashes, Heartbeat: state.Status.LastHeartbeatTime.Time,
	}, nil
}

// Forget deletes a StorageState.
func (a migrationAPI) Forget(ctx context.Context, resource schema.GroupResource) error {
	err := a.client.StorageStates().Delete(ctx, nameOf(resource), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting a StorageState: %w", err)
	}
	return nil
}

func nameOf(resource schema.GroupResource) string {
	return v1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource}.StorageStateName()
}

// Start creates a StorageVersionMigration.
func (a migrationAPI) Start(ctx context.Context, resource schema.GroupVersionResource) (suite.Migration, error) {
	asked := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "conformance-"}}
	asked.Spec.Resource = v1alpha1.GroupVersionResource{
		Group: resource.Group, Version: resource.Version, Resource: resource.Resource,
	}
	created, err := a.client.StorageVersionMigrations().Create(ctx, asked, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a StorageVersionMigration: %w", err)
	}
	return &migration{api: a, name: created.Name, state: nameOf(resource.GroupResource())}, nil
}

type migration struct {
	api migrationAPI
	// name is that of the migration, and state that of the record of its resource.
	name, state string
}

// Outcome reads the conditions.
func (m *migration) Outcome(ctx context.Context) (suite.Outcome, error) {
	live, err := m.api.client.StorageVersionMigrations().Get(ctx, m.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return suite.Outcome{Ended: true, Reason: deleted}, nil
	}
	if err != nil {
		return suite.Outcome{}, fmt.Errorf("getting a StorageVersionMigration: %w", err)
	}
	outcome := suite.Outcome{Denied: deniedOf(live)}
	for _, condition := range live.Status.Conditions {
		if condition.Status != "True" {
			continue
		}
		outcome.Reason, outcome.Message = condition.Reason, condition.Message
		switch condition.Type {
		case v1alpha1.MigrationSucceeded:
			outcome.Ended, outcome.Succeeded = true, true
		case v1alpha1.MigrationFailed:
			outcome.Ended = true
		}
		if outcome.Ended {
			break
		}
	}
	if live.Status.Progress != nil {
		outcome.Processed = &live.Status.Progress.Processed
	}
	if outcome.Ended {
		outcome.Everything, err = m.everything(ctx, live)
	}
	return outcome, err
}

// everything is the migration, the record of its resource, and the Events about both.
func (m *migration) everything(ctx context.Context, live *v1alpha1.StorageVersionMigration) (string, error) {
	about := []metav1.Object{live}
	state, err := m.api.client.StorageStates().Get(ctx, m.state, metav1.GetOptions{})
	switch {
	case err == nil:
		about = append(about, state)
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("getting a StorageState: %w", err)
	}
	var all []any
	for _, object := range about {
		selector := fields.OneTermEqualSelector("involvedObject.uid", string(object.GetUID())).String()
		events, err := m.api.kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return "", fmt.Errorf("listing Events: %w", err)
		}
		all = append(all, object, events.Items)
	}
	text, err := json.Marshal(all)
	return string(text), err
}

// Remove deletes the StorageVersionMigration.
func (m *migration) Remove(ctx context.Context) error {
	err := m.api.client.StorageVersionMigrations().Delete(ctx, m.name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting a StorageVersionMigration: %w", err)
	}
	return nil
}
