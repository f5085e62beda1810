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
	"errors"
	"fmt"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var errNoRecord = errors.New("kube-controller-manager keeps no record of what is stored")

// InTree is the storage-version-migrator-controller of kube-controller-manager.
type InTree struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

// NewInTree makes an adapter to kube-controller-manager.
func NewInTree(config *rest.Config) (*InTree, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return &InTree{kube, objects}, nil
}

// Name is the name of the program, and of what it is about.
func (i *InTree) Name() string { return "kube-controller-manager (in-tree migrator)" }

// Features are what its documents claim. Its garbage collector is another controller of the same program.
func (i *InTree) Features() suite.Features {
	return suite.Features{suite.FeaturePruning, suite.FeatureGarbageCollection}
}

// Prepare does nothing: its role allows everything.
func (i *InTree) Prepare(context.Context, schema.GroupVersionResource) (func(context.Context) error, error) {
	return nil, nil
}

// Knowledge is not there.
func (i *InTree) Knowledge(context.Context, schema.GroupResource) (suite.Knowledge, error) {
	return suite.Knowledge{}, errNoRecord
}

// Forget has nothing to forget.
func (i *InTree) Forget(context.Context, schema.GroupResource) error { return errNoRecord }

// Start creates a StorageVersionMigration.
func (i *InTree) Start(ctx context.Context, resource schema.GroupVersionResource) (suite.Migration, error) {
	asked := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "conformance-"}}
	asked.Spec.Resource = metav1.GroupResource{Group: resource.Group, Resource: resource.Resource}
	created, err := i.kube.StoragemigrationV1().StorageVersionMigrations().Create(ctx, asked, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a StorageVersionMigration: %w", err)
	}
	return &inTreeMigration{i, created.Name, resource}, nil
}

type inTreeMigration struct {
	*InTree
	name     string
	resource schema.GroupVersionResource
}

// Outcome reads the conditions. It also lists the resource: the controller starts when its cache is as new as the
// migration, and such a list makes the API server tell the cache how new it is, where nobody writes the resource.
func (m *inTreeMigration) Outcome(ctx context.Context) (suite.Outcome, error) {
	live, err := m.kube.StoragemigrationV1().StorageVersionMigrations().Get(ctx, m.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return suite.Outcome{Ended: true, Reason: deleted}, nil
	}
	if err != nil {
		return suite.Outcome{}, fmt.Errorf("getting a StorageVersionMigration: %w", err)
	}
	_, _ = m.dynamic.Resource(m.resource).List(ctx, metav1.ListOptions{Limit: 1}) // The resource may be gone.
	outcome := suite.Outcome{}
	for _, condition := range live.Status.Conditions {
		if condition.Status != metav1.ConditionTrue {
			continue
		}
		outcome.Reason, outcome.Message = condition.Reason, condition.Message
		switch storagemigrationv1.MigrationConditionType(condition.Type) {
		case storagemigrationv1.MigrationSucceeded:
			outcome.Ended, outcome.Succeeded = true, true
		case storagemigrationv1.MigrationFailed:
			outcome.Ended = true
		}
		if outcome.Ended {
			break
		}
	}
	text, err := json.Marshal(live)
	outcome.Everything = string(text)
	return outcome, err
}

// Remove deletes the StorageVersionMigration.
func (m *inTreeMigration) Remove(ctx context.Context) error {
	err := m.kube.StoragemigrationV1().StorageVersionMigrations().Delete(ctx, m.name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting a StorageVersionMigration: %w", err)
	}
	return nil
}
