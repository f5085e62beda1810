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

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// kube-storage-version-migrator has CustomResourceDefinitions of the same names, which lack fields. Where those are
// installed, the API server drops these fields from what it is sent. A state would lose its epoch, and the trigger
// would replace it without end. So the manager looks for the fields before it makes a controller. Later it asks the API
// server to refuse a write that has a field which the definition lacks. After the first refusal the manager ends, and
// its successor waits for the definitions.

// errFieldsRefused ends the manager.
var errFieldsRefused = errors.New("the API server refused fields of an object: the CustomResourceDefinitions of " +
	migrationv1alpha1.GroupName + " were replaced by others, such as those of kube-storage-version-migrator. Apply " +
	"those of this release")

// checkedClient ends the manager when the API server does not know a field that it is sent.
type checkedClient struct {
	migrationclient.MigrationV1alpha1Interface
	fail context.CancelCauseFunc
}

func (c checkedClient) StorageStates() migrationclient.StorageStateInterface {
	return checkedStates{c.MigrationV1alpha1Interface.StorageStates(), c}
}

func (c checkedClient) StorageVersionMigrations() migrationclient.StorageVersionMigrationInterface {
	return checkedMigrations{c.MigrationV1alpha1Interface.StorageVersionMigrations(), c}
}

// check ends the manager if an error says that the API server does not know a field.
func (c checkedClient) check(err error) error {
	if apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "strict decoding error") {
		err = fmt.Errorf("%w: %w", errFieldsRefused, err)
		c.fail(err)
	}
	return err
}

type checkedStates struct {
	migrationclient.StorageStateInterface
	client checkedClient
}

func (c checkedStates) UpdateStatus(
	ctx context.Context, state *migrationv1alpha1.StorageState, options metav1.UpdateOptions,
) (*migrationv1alpha1.StorageState, error) {
	options.FieldValidation = metav1.FieldValidationStrict
	stored, err := c.StorageStateInterface.UpdateStatus(ctx, state, options)
	return stored, c.client.check(err)
}

type checkedMigrations struct {
	migrationclient.StorageVersionMigrationInterface
	client checkedClient
}

func (c checkedMigrations) Create(
	ctx context.Context, migration *migrationv1alpha1.StorageVersionMigration, options metav1.CreateOptions,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	options.FieldValidation = metav1.FieldValidationStrict
	stored, err := c.StorageVersionMigrationInterface.Create(ctx, migration, options)
	return stored, c.client.check(err)
}

func (c checkedMigrations) UpdateStatus(
	ctx context.Context, migration *migrationv1alpha1.StorageVersionMigration, options metav1.UpdateOptions,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	options.FieldValidation = metav1.FieldValidationStrict
	stored, err := c.StorageVersionMigrationInterface.UpdateStatus(ctx, migration, options)
	return stored, c.client.check(err)
}
