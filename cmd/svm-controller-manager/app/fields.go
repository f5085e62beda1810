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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// kube-storage-version-migrator has CustomResourceDefinitions of the same names. Where those are installed, the API
// server drops fields that the controllers write, and says nothing. A state would lose its epoch with each write, and
// the trigger would replace it and write it again, without end. So the manager looks for a field of each definition
// before it makes a controller. If a later answer lacks a field that was sent, the manager ends. Its successor waits.

// errFieldsDropped ends the manager.
var errFieldsDropped = errors.New("the API server dropped fields of the status that it was sent: the " +
	"CustomResourceDefinitions of " + migrationv1alpha1.GroupName + " were replaced by others, such as those of " +
	"kube-storage-version-migrator. Apply those of this release")

// checkedClient ends the manager when the answer to the write of a status lacks what was sent: the epoch or
// currentSinceTime of a state, or the target of a migration.
type checkedClient struct {
	migrationclient.MigrationV1alpha1Interface
	fail context.CancelCauseFunc
}

func (c checkedClient) StorageStates() migrationclient.StorageStateInterface {
	return checkedStates{c.MigrationV1alpha1Interface.StorageStates(), c.fail}
}

func (c checkedClient) StorageVersionMigrations() migrationclient.StorageVersionMigrationInterface {
	return checkedMigrations{c.MigrationV1alpha1Interface.StorageVersionMigrations(), c.fail}
}

type checkedStates struct {
	migrationclient.StorageStateInterface
	fail context.CancelCauseFunc
}

func (c checkedStates) UpdateStatus(
	ctx context.Context, sent *migrationv1alpha1.StorageState, options metav1.UpdateOptions,
) (*migrationv1alpha1.StorageState, error) {
	stored, err := c.StorageStateInterface.UpdateStatus(ctx, sent, options)
	if err == nil && (stored.Status.Epoch != sent.Status.Epoch ||
		sent.Status.CurrentSinceTime != nil && stored.Status.CurrentSinceTime == nil) {
		c.fail(errFieldsDropped)
		return nil, errFieldsDropped
	}
	return stored, err
}

type checkedMigrations struct {
	migrationclient.StorageVersionMigrationInterface
	fail context.CancelCauseFunc
}

func (c checkedMigrations) UpdateStatus(
	ctx context.Context, sent *migrationv1alpha1.StorageVersionMigration, options metav1.UpdateOptions,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	stored, err := c.StorageVersionMigrationInterface.UpdateStatus(ctx, sent, options)
	if err == nil && sent.Status.Target != nil && stored.Status.Target == nil {
		c.fail(errFieldsDropped)
		return nil, errFieldsDropped
	}
	return stored, err
}
