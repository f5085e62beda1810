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
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// asTable requests the table that kubectl prints.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

// notMigrated are the reasons why a resource is not migrated.
var notMigrated = []string{migrationv1alpha1.StateReasonObjectsExpire, migrationv1alpha1.StateReasonNotMigratable}

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
	var last *migrationv1alpha1.StorageState
	err := d.until(ctx, "the StorageState says that "+what, func(ctx context.Context) (bool, error) {
		// Unlike a get, a list does not fail while the state does not exist.
		one := metav1.ListOptions{FieldSelector: "metadata.name=" + crontabs.String()}
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

// annotate sets an annotation on the state of crontabs.
func (d *demo) annotate(ctx context.Context, key, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		return fmt.Errorf("making a patch: %w", err)
	}
	states := d.migration.MigrationV1alpha1().StorageStates()
	_, err = states.Patch(ctx, crontabs.String(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("annotating the storage state: %w", err)
	}
	return nil
}

// showState prints what kubectl prints about the state of crontabs, without the columns for ages.
func (d *demo) showState(ctx context.Context) error {
	d.out.command("kubectl get storagestates %s", crontabs)
	request := d.migration.MigrationV1alpha1().RESTClient().Get().Resource("storagestates").Name(crontabs.String())
	data, err := request.SetHeader("Accept", asTable).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("getting the storage state as a table: %w", err)
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(data, table); err != nil {
		return fmt.Errorf("decoding a table: %w", err)
	}
	lines := make([]string, 1+len(table.Rows))
	for i, column := range table.ColumnDefinitions {
		if column.Priority > 0 || column.Type == "date" {
			continue
		}
		cells := []string{strings.ToUpper(column.Name)}
		for _, row := range table.Rows {
			cells = append(cells, fmt.Sprint(row.Cells[i]))
		}
		wide := 0
		for _, cell := range cells {
			wide = max(wide, len(cell))
		}
		for line, cell := range cells {
			lines[line] += fmt.Sprintf("%-*s   ", wide, cell)
		}
	}
	d.out.table(strings.Join(lines, "\n"))
	return nil
}
