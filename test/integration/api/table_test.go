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

package api

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// age is what kubectl shows for a time in the near past.
var age = regexp.MustCompile(`^\d+[smh]\d*[sm]?$`)

func TestTableOfMigrations(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	for name, status := range map[string]string{
		"a-pending": `null`,
		"b-running": `{
			target: {storageVersionHash: a=, encodingVersion: apps/v1, epoch: 4, storageStateUID: u},
			conditions: [{type: Running, status: "True", reason: Rewriting, message: in the third chunk}],
			progress: {
				percentComplete: 75, estimatedTotal: 2000, processed: 1500,
				rewritten: 1400, alreadyCurrent: 98, denied: 2, gone: 0, writtenByOthers: 0,
				retried: 7, objectsPerMinute: 6000},
			estimatedCompletionTime: "2100-01-01T00:00:00Z"}`,
		"c-failed": `{
			target: {storageVersionHash: a=, encodingVersion: apps/v1},
			conditions: [
				{type: Running, status: "False", reason: Finished},
				{type: Failed, status: "True", reason: ObjectsDenied, message: one object cannot be written}],
			progress: {percentComplete: 100, estimatedTotal: 10, processed: 10, rewritten: 9, denied: 1}}`,
		"e-queued": `{conditions: [
			{type: Waiting, status: "True", reason: Queued, message: three others run},
			{type: Running, status: "False", reason: Waiting}]}`,
		"d-succeeded-long-ago": `{conditions: [{type: Succeeded, status: "True", lastUpdateTime: "2021-03-04T05:06:07Z"}]}`,
	} {
		object := objectOf(t, "StorageVersionMigration", name, "spec", migrationOfDeployments)
		setPart(t, object, "status", status)
		shared.createWithStatus(t, object)
	}
	requireTable(t, "storageversionmigrations",
		[]string{"Name", "Resource", "Group", "Target", "State", "Reason", "Done%", "Denied", "Age"},
		[]string{"Processed", "Total", "Rewritten", "Per-Minute", "Estimated-End", "Epoch", "Message"},
		[][]any{
			{"a-pending", "deployments", "apps", nil, nil, nil, nil, nil, "AGE",
				nil, nil, nil, nil, nil, nil, nil},
			{"b-running", "deployments", "apps", "apps/v1", "Running", "Rewriting", 75.0, 2.0, "AGE",
				1500.0, 2000.0, 1400.0, 6000.0, "2100-01-01T00:00:00Z", 4.0, "in the third chunk"},
			{"c-failed", "deployments", "apps", "apps/v1", "Failed", "ObjectsDenied", 100.0, 1.0, "AGE",
				10.0, 10.0, 9.0, nil, nil, nil, "one object cannot be written"},
			{"d-succeeded-long-ago", "deployments", "apps", nil, "Succeeded", nil, nil, nil, "AGE",
				nil, nil, nil, nil, nil, nil, nil},
			{"e-queued", "deployments", "apps", nil, "Waiting", "Queued", nil, nil, "AGE",
				nil, nil, nil, nil, nil, nil, "three others run"},
		})
}

func TestTableOfStates(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	heartbeat := time.Now().Add(-2 * time.Minute).UTC().Format(time.RFC3339)
	for resource, status := range map[string]string{
		"configmaps": `null`,
		"pods": `{
			persistedStorageVersionHashes: [a=, b=], currentStorageVersionHash: b=, lastHeartbeatTime: "` + heartbeat + `",
			persistedEncodingVersions: [v1beta1, v1], currentEncodingVersion: v1, epoch: 5,
			evidence: {source: StorageVersion}, migration: {name: pods-x7k2p},
			backoff: {failures: 2, lastFailureTime: "2030-01-01T00:00:00Z"},
			conditions: [
				{type: Agreed, status: "True", reason: ServersAgree,
					message: "", lastTransitionTime: "2030-01-01T00:00:00Z"},
				{type: Migrated, status: "False", reason: MigrationFailed,
					message: tried again at noon, lastTransitionTime: "2030-01-01T00:00:00Z"},
				{type: SafeToRemoveOldVersions, status: "False", reason: MigrationFailed,
					message: tried again at noon, lastTransitionTime: "2030-01-01T00:00:00Z"}]}`,
		"nodes": `{
			persistedStorageVersionHashes: [a=, b=], currentStorageVersionHash: b=,
			persistedEncodingVersions: [a=, v1], currentEncodingVersion: v1,
			conditions: [
				{type: Migrated, status: "False", reason: MigrationQueued,
					message: "", lastTransitionTime: "2030-01-01T00:00:00Z"},
				{type: SafeToRemoveOldVersions, status: "False", reason: NotServed,
					message: no server serves nodes, lastTransitionTime: "2030-01-01T00:00:00Z"}]}`,
		"roles": `{
			persistedStorageVersionHashes: [b=], currentStorageVersionHash: b=,
			persistedEncodingVersions: [v1], currentEncodingVersion: v1,
			conditions: [
				{type: Migrated, status: "True", reason: OnlyCurrentEncodingPersisted,
					message: "", lastTransitionTime: "2030-01-01T00:00:00Z"},
				{type: SafeToRemoveOldVersions, status: "False", reason: StoredVersionsNotPruned,
					message: v1beta1 is still listed, lastTransitionTime: "2030-01-01T00:00:00Z"}]}`,
		"secrets": `{persistedStorageVersionHashes: [Unknown], currentStorageVersionHash: c=}`,
	} {
		object := objectOf(t, "StorageState", resource, "spec", `{resource: {resource: `+resource+`}}`)
		setPart(t, object, "status", status)
		shared.createWithStatus(t, object)
	}
	requireTable(t, "storagestates",
		[]string{"Name", "Current", "Persisted", "Agreed", "Migrated", "Safe", "Reason", "Heartbeat", "Age"},
		[]string{"Current-Hash", "Persisted-Hashes", "Source", "Epoch", "Migration", "Failures", "Message"},
		[][]any{
			{"configmaps", nil, nil, nil, nil, nil, nil, nil, "AGE",
				nil, nil, nil, nil, nil, nil, nil},
			{"nodes", "v1", `["a=","v1"]`, nil, "False", "False", "NotServed", nil, "AGE",
				"b=", `["a=","b="]`, nil, nil, nil, nil, "no server serves nodes"},
			{"pods", "v1", `["v1beta1","v1"]`, "True", "False", "False", "MigrationFailed", "AGE", "AGE",
				"b=", `["a=","b="]`, "StorageVersion", 5.0, "pods-x7k2p", 2.0, "tried again at noon"},
			{"roles", "v1", `["v1"]`, nil, "True", "False", "StoredVersionsNotPruned", nil, "AGE",
				"b=", `["b="]`, nil, nil, nil, nil, "v1beta1 is still listed"},
			{"secrets", nil, nil, nil, nil, nil, nil, nil, "AGE",
				"c=", `["Unknown"]`, nil, nil, nil, nil, nil},
		})
}

// requireTable compares what kubectl get prints: the narrow columns, those that -o wide adds, and the cells, with AGE
// in place of ages.
func requireTable(t *testing.T, resource string, narrow, wide []string, rows [][]any) {
	t.Helper()
	table := tableOf(t, resource)
	var gotNarrow, gotWide []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			gotNarrow = append(gotNarrow, column.Name)
		} else {
			gotWide = append(gotWide, column.Name)
		}
		if column.Description == "" {
			t.Errorf("column %q has no description", column.Name)
		}
	}
	if diff := cmp.Diff(narrow, gotNarrow); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wide, gotWide); diff != "" {
		t.Errorf("columns of the wide output (-want +got):\n%s", diff)
	}
	var gotRows [][]any
	for _, row := range table.Rows {
		for i, cell := range row.Cells {
			if i > 0 && age.MatchString(fmt.Sprint(cell)) && table.ColumnDefinitions[i].Type == "date" {
				row.Cells[i] = "AGE"
			}
		}
		gotRows = append(gotRows, row.Cells)
	}
	if diff := cmp.Diff(rows, gotRows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// Objects that kube-storage-version-migrator left behind have their state in the same column.
func TestTableOfMigrationsOfKubeStorageVersionMigrator(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	shared.createWithStatus(
		t, objectsIn(t, filepath.Join(fixtures, "kube-storage-version-migrator", "migration-failed.yaml"))[0],
	)
	table := tableOf(t, "storageversionmigrations")
	if len(table.Rows) != 1 || table.Rows[0].Cells[4] != "Failed" {
		t.Errorf("rows %v, want one in the state Failed", table.Rows)
	}
}

// tableOf is all objects of the resource as kubectl get asks for them.
func tableOf(t *testing.T, resource string) metav1.Table {
	t.Helper()
	raw, err := shared.migration.MigrationV1alpha1().RESTClient().Get().Resource(resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	return table
}
