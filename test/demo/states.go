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

package main

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// notMigrated are the reasons why a resource is not migrated.
var notMigrated = []string{
	migrationv1alpha1.StateReasonObjectsExpire, migrationv1alpha1.StateReasonNotSelected,
}

// finished reports whether the resource is migrated or will never be, and why.
func finished(state *migrationv1alpha1.StorageState) (done bool, why string) {
	migrated := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	if migrated == nil {
		return false, ""
	}
	if slices.Contains(notMigrated, migrated.Reason) {
		why = migrated.Reason
	}
	return migrated.Status == metav1.ConditionTrue, why
}

// untilState polls the state of crontabs until it is as wanted.
func (d *demo) untilState(ctx context.Context, what string, wanted func(*migrationv1alpha1.StorageState) bool) error {
	return d.untilStateOf(ctx, crontabs, what, wanted)
}

func (d *demo) untilStateOf(
	ctx context.Context, resource schema.GroupResource, what string, wanted func(*migrationv1alpha1.StorageState) bool,
) error {
	var last *migrationv1alpha1.StorageState
	err := d.until(ctx, "the StorageState says that "+what, func(ctx context.Context) (bool, error) {
		// Unlike a get, a list does not fail while the state does not exist.
		one := metav1.ListOptions{FieldSelector: "metadata.name=" + resource.String()}
		list, err := d.migration.MigrationV1alpha1().StorageStates().List(ctx, one)
		if err != nil {
			return false, fmt.Errorf("listing storage states: %w", err)
		}
		if len(list.Items) == 0 {
			return false, nil
		}
		last = &list.Items[0]
		return wanted(last), nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w; it says %+v", err, last.Status)
	}
	return err
}

func holds(state *migrationv1alpha1.StorageState, condition string) bool {
	return meta.IsStatusConditionTrue(state.Status.Conditions, condition)
}

// showState shows what the plugin tells about crontabs.
func (d *demo) showState(ctx context.Context) error {
	return d.kubectl(ctx, []string{"svm", "status", crontabs.String()}, 0, notSafe)
}
