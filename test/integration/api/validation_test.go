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
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/yaml"
)

// refusal is what has to be in the message of an answer that says Invalid; empty where the request has to succeed.
type refusal string

const accepted refusal = ""

const (
	migrationOfDeployments = `{resource: {group: apps, version: v1, resource: deployments}}`
	stateOfDeployments     = `{resource: {group: apps, resource: deployments}}`
)

func TestValidationOfNewMigrations(t *testing.T) {
	longLabel := strings.Repeat("a", 64)
	for name, test := range map[string]struct {
		spec string
		want refusal
	}{
		"a resource with group and version":      {migrationOfDeployments, accepted},
		"a resource without version, as by hand": {`{resource: {group: apps, resource: deployments}}`, accepted},
		"a resource of the core group":           {`{resource: {version: v1, resource: secrets}}`, accepted},
		"the core group in so many words":        {`{resource: {group: "", resource: secrets}}`, accepted},
		"a continue token that nobody reads":     {`{resource: {resource: secrets}, continueToken: abc}`, accepted},
		"a resource that nobody serves":          {`{resource: {group: example.com, resource: no-such-things}}`, accepted},
		"no spec":                                {`null`, "spec.resource is required: name the resource whose stored objects to migrate"},
		"no resource":                            {`{continueToken: abc}`, "spec.resource: Required value"},
		"no resource name":                       {`{resource: {group: apps}}`, "name the resource to migrate by its plural, for example deployments"},
		"an empty resource name":                 {`{resource: {resource: ""}}`, "name the resource to migrate by its plural, for example deployments"},
		"a subresource":                          {`{resource: {group: apps, resource: deployments/status}}`, "a subresource is stored with its resource: name the resource alone"},
		"a kind":                                 {`{resource: {group: apps, resource: Deployment}}`, "use the plural name in lower case"},
		"a resource name with its group":         {`{resource: {resource: deployments.apps}}`, "the group has a field of its own"},
		"a version within the group":             {`{resource: {group: apps/v1, resource: deployments}}`, "give group and version each in its own field"},
		"a group within the version":             {`{resource: {version: apps/v1, resource: deployments}}`, "give group and version each in its own field"},
		"a name that no resource has":            {`{resource: {resource: ` + longLabel + `}}`, "spec.resource.resource: Too long"},
		"a target with its epoch":                {`{resource: {resource: pods}, target: {storageVersionHash: a=, encodingVersion: v1, epoch: 3, storageStateUID: u}}`, accepted},
		"a target by its hash alone":             {`{resource: {resource: pods}, target: {storageVersionHash: a=}}`, accepted},
		"a target without hash":                  {`{resource: {resource: pods}, target: {encodingVersion: v1}}`, "spec.target.storageVersionHash: Required value"},
		"an unknown target":                      {`{resource: {resource: pods}, target: {storageVersionHash: Unknown}}`, "wait until the servers agree, or leave target out"},
		"an epoch of no StorageState":            {`{resource: {resource: pods}, target: {storageVersionHash: a=, epoch: 3}}`, "set epoch and storageStateUID together or leave both out"},
		"an epoch from before the first":         {`{resource: {resource: pods}, target: {storageVersionHash: a=, epoch: 0, storageStateUID: u}}`, "should be greater than or equal to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageVersionMigration", "test", "spec", test.spec)
			_, err := shared.resourceOf(object).Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
			requireAnswer(t, err, test.want)
		})
	}
}

func TestValidationOfNewStates(t *testing.T) {
	for name, test := range map[string]struct {
		objectName, spec string
		want             refusal
	}{
		"named by resource and group":               {"deployments.apps", stateOfDeployments, accepted},
		"named by resource alone in the core group": {"pods", `{resource: {resource: pods}}`, accepted},
		"an empty group is the core group":          {"pods", `{resource: {group: "", resource: pods}}`, accepted},
		"a group with dots":                         {"storagestates.migration.k8s.io", `{resource: {group: migration.k8s.io, resource: storagestates}}`, accepted},
		"no spec":                                   {"pods", `null`, "spec.resource is required: name the resource that this StorageState is about"},
		"no resource":                               {"pods", `{}`, "spec.resource: Required value"},
		"no resource name":                          {"apps", `{resource: {group: apps}}`, "name the resource by its plural, for example deployments"},
		"an empty resource name":                    {"pods", `{resource: {resource: ""}}`, "name the resource by its plural, for example deployments"},
		"a subresource":                             {"pods", `{resource: {resource: pods/status}}`, "a subresource is stored with its resource"},
		"a kind":                                    {"Deployment.apps", `{resource: {group: apps, resource: Deployment}}`, "use the plural name in lower case"},
		"a resource name with its group":            {"deployments.apps", `{resource: {resource: deployments.apps}}`, "the group has a field of its own"},
		"the group missing in the name":             {"deployments", stateOfDeployments, "metadata.name must be <resource>.<group> of spec.resource, or <resource> alone for the core group"},
		"the group first":                           {"apps.deployments", stateOfDeployments, "metadata.name must be <resource>.<group>"},
		"another resource's name":                   {"replicasets.apps", stateOfDeployments, "metadata.name must be <resource>.<group>"},
		"a group in the name only":                  {"deployments.apps", `{resource: {resource: deployments}}`, "metadata.name must be <resource>.<group>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageState", test.objectName, "spec", test.spec)
			_, err := shared.resourceOf(object).Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
			requireAnswer(t, err, test.want)
		})
	}
}

func TestValidationOfChangedSpecs(t *testing.T) {
	const targeted = `{resource: {resource: pods}, target: {storageVersionHash: a=, epoch: 3, storageStateUID: u}}`
	for name, test := range map[string]struct {
		kind, objectName, before, after string
		want                            refusal
	}{
		"the continue token goes on":        {"StorageVersionMigration", "m", `{resource: {resource: pods}, continueToken: a}`, `{resource: {resource: pods}, continueToken: b}`, accepted},
		"the continue token goes":           {"StorageVersionMigration", "m", `{resource: {resource: pods}, continueToken: a}`, `{resource: {resource: pods}}`, accepted},
		"an empty group is left out":        {"StorageVersionMigration", "m", `{resource: {group: "", resource: pods}}`, `{resource: {resource: pods, version: ""}}`, accepted},
		"another resource":                  {"StorageVersionMigration", "m", migrationOfDeployments, `{resource: {group: apps, version: v1, resource: replicasets}}`, "the resource of a migration cannot be changed: create another StorageVersionMigration"},
		"another group":                     {"StorageVersionMigration", "m", migrationOfDeployments, `{resource: {group: extensions, version: v1, resource: deployments}}`, "the resource of a migration cannot be changed"},
		"another version":                   {"StorageVersionMigration", "m", migrationOfDeployments, `{resource: {group: apps, version: v1beta1, resource: deployments}}`, "the resource of a migration cannot be changed"},
		"no version any more":               {"StorageVersionMigration", "m", migrationOfDeployments, `{resource: {group: apps, resource: deployments}}`, "the resource of a migration cannot be changed"},
		"no resource any more":              {"StorageVersionMigration", "m", migrationOfDeployments, `{continueToken: a}`, "spec.resource: Required value"},
		"no spec any more":                  {"StorageVersionMigration", "m", migrationOfDeployments, `null`, "spec.resource is required"},
		"the target stays":                  {"StorageVersionMigration", "m", targeted, targeted, accepted},
		"another epoch":                     {"StorageVersionMigration", "m", targeted, strings.Replace(targeted, "3", "4", 1), "the target of a migration cannot be changed: create another StorageVersionMigration"},
		"another target":                    {"StorageVersionMigration", "m", targeted, strings.Replace(targeted, "a=", "b=", 1), "the target of a migration cannot be changed"},
		"a target comes late":               {"StorageVersionMigration", "m", `{resource: {resource: pods}}`, targeted, "the target of a migration cannot be changed"},
		"the target goes":                   {"StorageVersionMigration", "m", targeted, `{resource: {resource: pods}}`, "the target of a migration cannot be changed"},
		"a state stays as it is":            {"StorageState", "deployments.apps", stateOfDeployments, stateOfDeployments, accepted},
		"a state's empty group is left out": {"StorageState", "pods", `{resource: {group: "", resource: pods}}`, `{resource: {resource: pods}}`, accepted},
		"a state of another resource":       {"StorageState", "deployments.apps", stateOfDeployments, `{resource: {group: apps, resource: replicasets}}`, "the resource of a StorageState cannot be changed: delete this StorageState and create another one"},
		"a state of another group":          {"StorageState", "deployments.apps", stateOfDeployments, `{resource: {resource: deployments}}`, "the resource of a StorageState cannot be changed"},
		"a state of nothing":                {"StorageState", "deployments.apps", stateOfDeployments, `null`, "spec.resource is required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := shared.createWithStatus(t, objectOf(t, test.kind, test.objectName, "spec", test.before))
			setPart(t, object, "spec", test.after)
			_, err := shared.resourceOf(object).Update(t.Context(), object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
			requireAnswer(t, err, test.want)
		})
	}
}

func TestValidationOfChangedStateStatus(t *testing.T) {
	const leftOut refusal = "persistedStorageVersionHashes must contain currentStorageVersionHash, or Unknown"
	const shrunk refusal = "an entry leaves persistedStorageVersionHashes only when currentStorageVersionHash alone remains"
	for name, test := range map[string]struct {
		before, after string
		want          refusal
	}{
		"first sight":                                            {`null`, `{currentStorageVersionHash: a=, persistedStorageVersionHashes: [Unknown]}`, accepted},
		"first sight, current not persisted":                     {`null`, `{currentStorageVersionHash: a=, persistedStorageVersionHashes: [b=]}`, leftOut},
		"first sight, nothing persisted":                         {`null`, `{currentStorageVersionHash: a=}`, leftOut},
		"the servers do not agree at all":                        {`null`, `{currentStorageVersionHash: Unknown, persistedStorageVersionHashes: [a=, b=]}`, accepted},
		"a new encoding, recorded at once":                       {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [a=, b=]}`, accepted},
		"a new encoding, appended by the rules of the documents": {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=, b=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [a=, b=, b=]}`, accepted},
		"a new encoding, not recorded":                           {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [a=]}`, leftOut},
		"a new encoding in place of the old":                     {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=, c=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=, c=]}`, shrunk},
		"a migration is complete":                                {`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [Unknown, a=, b=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`, accepted},
		"one of two old encodings is forgotten":                  {`{currentStorageVersionHash: c=, persistedStorageVersionHashes: [a=, b=, c=]}`, `{currentStorageVersionHash: c=, persistedStorageVersionHashes: [b=, c=]}`, shrunk},
		"Unknown is forgotten":                                   {`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [Unknown, a=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [a=, b=]}`, shrunk},
		"shrunk while nothing is agreed":                         {`{currentStorageVersionHash: Unknown, persistedStorageVersionHashes: [a=, b=]}`, `{currentStorageVersionHash: Unknown, persistedStorageVersionHashes: [a=]}`, shrunk},
		"a new encoding, and the old one forgotten":              {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`, shrunk},
		"agreement, and the old encodings forgotten":             {`{currentStorageVersionHash: Unknown, persistedStorageVersionHashes: [Unknown, a=, b=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`, shrunk},
		"first agreement, and the old encodings forgotten":       {`{persistedStorageVersionHashes: [a=, b=]}`, `{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`, shrunk},
		"all forgotten for an empty hash":                        {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=, b=]}`, `{currentStorageVersionHash: "", persistedStorageVersionHashes: [""]}`, shrunk},
		"all forgotten for an empty hash that was there":         {`{currentStorageVersionHash: "", persistedStorageVersionHashes: [a=, ""]}`, `{currentStorageVersionHash: "", persistedStorageVersionHashes: [""]}`, shrunk},
		"more encodings than the list can hold":                  {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=, b=]}`, `{currentStorageVersionHash: c=, persistedStorageVersionHashes: [Unknown, c=]}`, accepted},
		"started over":                                           {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=, b=]}`, `{currentStorageVersionHash: a=, persistedStorageVersionHashes: [Unknown]}`, accepted},
		"emptied":                                                {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`, `{persistedStorageVersionHashes: []}`, shrunk},
		"taken out":                                              {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`, `{epoch: 1}`, shrunk},
		"the whole status taken out":                             {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`, `null`, "status cannot be removed while it has persistedStorageVersionHashes or an epoch"},
		"the whole status taken out, an epoch in it":             {`{epoch: 3}`, `null`, "to start over, delete the StorageState"},
		"a status taken out that says nothing":                   {`{persistedStorageVersionHashes: [], lastHeartbeatTime: "2030-01-01T00:00:00Z"}`, `null`, accepted},
		"repeated entries are put right":                         {`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=, b=, a=]}`, `{currentStorageVersionHash: a=, persistedStorageVersionHashes: [b=, a=]}`, accepted},
		"the epoch goes up":                                      {`{epoch: 3}`, `{epoch: 9}`, accepted},
		"the epoch stays":                                        {`{epoch: 3}`, `{epoch: 3}`, accepted},
		"the epoch goes down":                                    {`{epoch: 3}`, `{epoch: 2}`, "epoch never goes down"},
		"the epoch goes away":                                    {`{epoch: 3}`, `{lastHeartbeatTime: "2030-01-01T00:00:00Z"}`, "epoch never goes down"},
		"a retry is answered":                                    {`{lastHandledRetry: one}`, `{lastHandledRetry: other}`, accepted},
		"a retry that was not cut":                               {`null`, `{lastHandledRetry: ` + strings.Repeat("x", v1alpha1.MaxRetryLength+1) + `}`, "Too long"},
		"evidence of a source that is none":                      {`null`, `{evidence: {source: Guess}}`, "Unsupported value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageState", "deployments.apps", "spec", stateOfDeployments)
			setPart(t, object, "status", test.before)
			object = shared.createWithStatus(t, object)
			setPart(t, object, "status", test.after)
			_, err := shared.resourceOf(object).UpdateStatus(t.Context(), object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
			requireAnswer(t, err, test.want)
		})
	}
}

// What a controller writes in the course of time, one after the other.
func TestLivesOfStates(t *testing.T) {
	for name, statuses := range map[string][]string{
		"a new encoding, migrated": {
			`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [Unknown, a=]}`,
			`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [a=, b=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`,
		},
		"a disagreement, then agreement, migrated": {
			`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [a=]}`,
			`{currentStorageVersionHash: Unknown, persistedStorageVersionHashes: [a=, b=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [a=, b=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`,
		},
		"repeated entries, appended by kube-storage-version-migrator, then migrated": {
			`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [Unknown]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [Unknown, b=]}`,
			`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [Unknown, b=, a=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [Unknown, b=, a=, b=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`,
			`{currentStorageVersionHash: a=, persistedStorageVersionHashes: [b=, a=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=, a=, b=]}`,
			`{currentStorageVersionHash: b=, persistedStorageVersionHashes: [b=]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := shared.createWithStatus(t, objectOf(t, "StorageState", "deployments.apps", "spec", stateOfDeployments))
			for i, status := range statuses {
				setPart(t, object, "status", status)
				var err error
				if object, err = shared.resourceOf(object).UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
					t.Fatalf("status %d: %v", i, err)
				}
			}
		})
	}
}

func TestValidationOfMigrationStatus(t *testing.T) {
	hundred, more := deniedObjects(100), deniedObjects(101)
	for name, test := range map[string]struct {
		status string
		want   refusal
	}{
		"as many denied objects as are allowed":   {`{deniedObjects: [` + hundred + `]}`, accepted},
		"more denied objects than are allowed":    {`{deniedObjects: [` + more + `]}`, "must have at most 100 items"},
		"a message of full length, not in ASCII":  {`{deniedObjects: [{name: a, message: "` + strings.Repeat("ü", 1024) + `"}]}`, accepted},
		"a message that was not cut":              {`{deniedObjects: [{name: a, message: "` + strings.Repeat("x", 1025) + `"}]}`, "Too long"},
		"one name in two namespaces and in none":  {`{deniedObjects: [{name: a}, {name: a, namespace: b}, {name: a, namespace: c}]}`, accepted},
		"one denied object twice":                 {`{deniedObjects: [{name: a, reason: Invalid}, {name: a, reason: Forbidden}]}`, "Duplicate value"},
		"one condition twice":                     {`{conditions: [{type: Running, status: "True"}, {type: Running, status: "False"}]}`, "Duplicate value"},
		"a count below nothing":                   {`{progress: {rewritten: -1}}`, "should be greater than or equal to 0"},
		"more than all":                           {`{progress: {percentComplete: 101}}`, "should be less than or equal to 100"},
		"a long message of a condition":           {`{conditions: [{type: Failed, status: "True", message: "` + strings.Repeat("x", 100_000) + `"}]}`, accepted},
		"a target that is known by its hash only": {`{target: {storageVersionHash: a=}}`, accepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := shared.createWithStatus(t, objectOf(t, "StorageVersionMigration", "test", "spec", migrationOfDeployments))
			setPart(t, object, "status", test.status)
			_, err := shared.resourceOf(object).UpdateStatus(t.Context(), object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
			requireAnswer(t, err, test.want)
		})
	}
}

func deniedObjects(n int) string {
	var objects []string
	for i := range n {
		objects = append(objects, "{name: "+strings.Repeat("a", i+1)+"}")
	}
	return strings.Join(objects, ", ")
}

func objectOf(t *testing.T, kind, name, part, content string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("migration.k8s.io/v1alpha1")
	object.SetKind(kind)
	object.SetName(name)
	setPart(t, object, part, content)
	return object
}

// setPart sets the spec or the status of object to the YAML, or removes it if that is null.
func setPart(t *testing.T, object *unstructured.Unstructured, part, content string) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(`{apiVersion: v1, kind: Part, content: ` + content + `}`))
	if err != nil {
		t.Fatal(err)
	}
	parsed := &unstructured.Unstructured{}
	if err := parsed.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	delete(object.Object, part)
	if content := parsed.Object["content"]; content != nil {
		object.Object[part] = content
	}
}

func requireAnswer(t *testing.T, err error, want refusal) {
	t.Helper()
	switch {
	case want == accepted && err != nil:
		t.Errorf("refused: %v", err)
	case want != accepted && err == nil:
		t.Errorf("accepted, want a refusal that says %q", want)
	case want != accepted && !apierrors.IsInvalid(err):
		t.Errorf("another error than Invalid: %v", err)
	case want != accepted && !strings.Contains(err.Error(), string(want)):
		t.Errorf("the refusal does not say %q: %v", want, err)
	}
}
