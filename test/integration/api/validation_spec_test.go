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
)

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
		"a resource with group and version": {
			spec: migrationOfDeployments,
			want: accepted,
		},
		"a resource without version, as by hand": {
			spec: `{resource: {group: apps, resource: deployments}}`,
			want: accepted,
		},
		"a resource of the core group": {
			spec: `{resource: {version: v1, resource: secrets}}`,
			want: accepted,
		},
		"the core group in so many words": {
			spec: `{resource: {group: "", resource: secrets}}`,
			want: accepted,
		},
		"a continue token that nobody reads": {
			spec: `{resource: {resource: secrets}, continueToken: abc}`,
			want: accepted,
		},
		"a resource that nobody serves": {
			spec: `{resource: {group: example.com, resource: no-such-things}}`,
			want: accepted,
		},
		"no spec": {
			spec: `null`,
			want: "spec.resource is required: name the resource whose stored objects to migrate",
		},
		"no resource": {
			spec: `{continueToken: abc}`,
			want: "spec.resource: Required value",
		},
		"no resource name": {
			spec: `{resource: {group: apps}}`,
			want: "name the resource to migrate by its plural, for example deployments",
		},
		"an empty resource name": {
			spec: `{resource: {resource: ""}}`,
			want: "name the resource to migrate by its plural, for example deployments",
		},
		"a subresource": {
			spec: `{resource: {group: apps, resource: deployments/status}}`,
			want: "a subresource is stored with its resource: name the resource alone",
		},
		"a kind": {
			spec: `{resource: {group: apps, resource: Deployment}}`,
			want: "use the plural name in lower case",
		},
		"a resource name with its group": {
			spec: `{resource: {resource: deployments.apps}}`,
			want: "the group has a field of its own",
		},
		"a version within the group": {
			spec: `{resource: {group: apps/v1, resource: deployments}}`,
			want: "give group and version each in its own field",
		},
		"a group within the version": {
			spec: `{resource: {version: apps/v1, resource: deployments}}`,
			want: "give group and version each in its own field",
		},
		"a kind as group": {
			spec: `{resource: {group: Apps, resource: deployments}}`,
			want: "use the name of the API group alone and in lower case",
		},
		"a version that is no name": {
			spec: `{resource: {version: "1", resource: pods}}`,
			want: "use the name of a version, for example v1, or leave it empty",
		},
		"one that begins suspended": {
			spec: `{resource: {resource: pods}, suspend: true}`,
			want: accepted,
		},
		"a name that no resource has": {
			spec: `{resource: {resource: ` + longLabel + `}}`,
			want: "spec.resource.resource: Too long",
		},
		"a target with its epoch": {
			spec: `{resource: {resource: pods},
				target: {storageVersionHash: a=, encodingVersion: v1, epoch: 3, storageStateUID: u}}`,
			want: accepted,
		},
		"a target by its hash alone": {
			spec: `{resource: {resource: pods}, target: {storageVersionHash: a=}}`,
			want: accepted,
		},
		"a target without hash": {
			spec: `{resource: {resource: pods}, target: {encodingVersion: v1}}`,
			want: "spec.target.storageVersionHash: Required value",
		},
		"an unknown target": {
			spec: `{resource: {resource: pods}, target: {storageVersionHash: Unknown}}`,
			want: "wait until the servers agree, or leave target out",
		},
		"a target by its version": {
			spec: `{resource: {resource: deployments, group: apps}, target: {storageVersionHash: apps/v1}}`,
			want: "this is a version: give its hash",
		},
		"a target by its version in the core group": {
			spec: `{resource: {resource: pods}, target: {storageVersionHash: v1}}`,
			want: "this is a version: give its hash",
		},
		"a target by a hash with a slash": {
			spec: `{resource: {resource: pods}, target: {storageVersionHash: a/v1=}}`,
			want: accepted,
		},
		"an epoch of no StorageState": {
			spec: `{resource: {resource: pods}, target: {storageVersionHash: a=, epoch: 3}}`,
			want: "set epoch and storageStateUID together or leave both out",
		},
		"an epoch from before the first": {
			spec: `{resource: {resource: pods}, target: {storageVersionHash: a=, epoch: 0, storageStateUID: u}}`,
			want: "should be greater than or equal to 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageVersionMigration", "test", "spec", test.spec)
			_, err := shared.resourceOf(object).Create(t.Context(), object, strictCreate)
			requireAnswer(t, err, test.want)
		})
	}
}

func TestValidationOfNewStates(t *testing.T) {
	for name, test := range map[string]struct {
		objectName, spec string
		want             refusal
	}{
		"named by resource and group": {
			objectName: "deployments.apps",
			spec:       stateOfDeployments,
			want:       accepted,
		},
		"named by resource alone in the core group": {
			objectName: "pods",
			spec:       `{resource: {resource: pods}}`,
			want:       accepted,
		},
		"an empty group is the core group": {
			objectName: "pods",
			spec:       `{resource: {group: "", resource: pods}}`,
			want:       accepted,
		},
		"a group with dots": {
			objectName: "storagestates.migration.k8s.io",
			spec:       `{resource: {group: migration.k8s.io, resource: storagestates}}`,
			want:       accepted,
		},
		"no spec": {
			objectName: "pods",
			spec:       `null`,
			want:       "spec.resource is required: name the resource that this StorageState is about",
		},
		"no resource": {
			objectName: "pods",
			spec:       `{}`,
			want:       "spec.resource: Required value",
		},
		"no resource name": {
			objectName: "apps",
			spec:       `{resource: {group: apps}}`,
			want:       "name the resource by its plural, for example deployments",
		},
		"an empty resource name": {
			objectName: "pods",
			spec:       `{resource: {resource: ""}}`,
			want:       "name the resource by its plural, for example deployments",
		},
		"a subresource": {
			objectName: "pods",
			spec:       `{resource: {resource: pods/status}}`,
			want:       "a subresource is stored with its resource",
		},
		"a kind": {
			objectName: "Deployment.apps",
			spec:       `{resource: {group: apps, resource: Deployment}}`,
			want:       "use the plural name in lower case",
		},
		"a resource name with its group": {
			objectName: "deployments.apps",
			spec:       `{resource: {resource: deployments.apps}}`,
			want:       "the group has a field of its own",
		},
		"the group missing in the name": {
			objectName: "deployments",
			spec:       stateOfDeployments,
			want:       "metadata.name must be <resource>.<group> of spec.resource, or <resource> alone for the core group",
		},
		"the group first": {
			objectName: "apps.deployments",
			spec:       stateOfDeployments,
			want:       "metadata.name must be <resource>.<group>",
		},
		"another resource's name": {
			objectName: "replicasets.apps",
			spec:       stateOfDeployments,
			want:       "metadata.name must be <resource>.<group>",
		},
		"a kind as group": {
			objectName: "deployments.Apps",
			spec:       `{resource: {group: Apps, resource: deployments}}`,
			want:       "use the name of the API group alone and in lower case",
		},
		"paused, with a soak period": {
			objectName: "pods",
			spec:       `{resource: {resource: pods}, paused: true, retryToken: now, soakSeconds: 0}`,
			want:       accepted,
		},
		"a soak period of years": {
			objectName: "pods",
			spec:       `{resource: {resource: pods}, soakSeconds: 99999999}`,
			want:       "spec.soakSeconds: Invalid value",
		},
		"a soak period with a unit": {
			objectName: "pods",
			spec:       `{resource: {resource: pods}, soakSeconds: 24h}`,
			want:       "spec.soakSeconds: Invalid value",
		},
		"a group in the name only": {
			objectName: "deployments.apps",
			spec:       `{resource: {resource: deployments}}`,
			want:       "metadata.name must be <resource>.<group>",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			object := objectOf(t, "StorageState", test.objectName, "spec", test.spec)
			_, err := shared.resourceOf(object).Create(t.Context(), object, strictCreate)
			requireAnswer(t, err, test.want)
		})
	}
}

func TestValidationOfChangedSpecs(t *testing.T) {
	const targeted = `{resource: {resource: pods}, target: {storageVersionHash: a=, epoch: 3, storageStateUID: u}}`
	for name, test := range map[string]struct {
		before, after string
		want          refusal
	}{
		"the continue token goes on": {
			before: `{resource: {resource: pods}, continueToken: a}`,
			after:  `{resource: {resource: pods}, continueToken: b}`,
			want:   accepted,
		},
		"the continue token goes": {
			before: `{resource: {resource: pods}, continueToken: a}`,
			after:  `{resource: {resource: pods}}`,
			want:   accepted,
		},
		"an empty group is left out": {
			before: `{resource: {group: "", resource: pods}}`,
			after:  `{resource: {resource: pods, version: ""}}`,
			want:   accepted,
		},
		"another resource": {
			before: migrationOfDeployments,
			after:  `{resource: {group: apps, version: v1, resource: replicasets}}`,
			want:   "the resource of a migration cannot be changed: create another StorageVersionMigration",
		},
		"another group": {
			before: migrationOfDeployments,
			after:  `{resource: {group: extensions, version: v1, resource: deployments}}`,
			want:   "the resource of a migration cannot be changed",
		},
		"another version": {
			before: migrationOfDeployments,
			after:  `{resource: {group: apps, version: v1beta1, resource: deployments}}`,
			want:   "the resource of a migration cannot be changed",
		},
		"no version any more": {
			before: migrationOfDeployments,
			after:  `{resource: {group: apps, resource: deployments}}`,
			want:   "the resource of a migration cannot be changed",
		},
		"no resource any more": {
			before: migrationOfDeployments,
			after:  `{continueToken: a}`,
			want:   "spec.resource: Required value",
		},
		"no spec any more": {
			before: migrationOfDeployments,
			after:  `null`,
			want:   "spec.resource is required",
		},
		"the target stays": {
			before: targeted,
			after:  targeted,
			want:   accepted,
		},
		"another epoch": {
			before: targeted,
			after:  strings.Replace(targeted, "3", "4", 1),
			want:   "the target of a migration cannot be changed: create another StorageVersionMigration",
		},
		"another target": {
			before: targeted,
			after:  strings.Replace(targeted, "a=", "b=", 1),
			want:   "the target of a migration cannot be changed",
		},
		"a target comes late": {
			before: `{resource: {resource: pods}}`,
			after:  targeted,
			want:   "the target of a migration cannot be changed",
		},
		"the target goes": {
			before: targeted,
			after:  `{resource: {resource: pods}}`,
			want:   "the target of a migration cannot be changed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			changeSpec(t, "StorageVersionMigration", "m", test.before, test.after, test.want)
		})
	}
	for name, test := range map[string]struct {
		objectName, before, after string
		want                      refusal
	}{
		"a state stays as it is": {
			objectName: "deployments.apps",
			before:     stateOfDeployments,
			after:      stateOfDeployments,
			want:       accepted,
		},
		"a state's empty group is left out": {
			objectName: "pods",
			before:     `{resource: {group: "", resource: pods}}`,
			after:      `{resource: {resource: pods}}`,
			want:       accepted,
		},
		"a state of another resource": {
			objectName: "deployments.apps",
			before:     stateOfDeployments,
			after:      `{resource: {group: apps, resource: replicasets}}`,
			want:       "the resource of a StorageState cannot be changed: delete this StorageState and create another one",
		},
		"a state of another group": {
			objectName: "deployments.apps",
			before:     stateOfDeployments,
			after:      `{resource: {resource: deployments}}`,
			want:       "the resource of a StorageState cannot be changed",
		},
		"a state of nothing": {
			objectName: "deployments.apps",
			before:     stateOfDeployments,
			after:      `null`,
			want:       "spec.resource is required",
		},
	} {
		t.Run(name, func(t *testing.T) {
			changeSpec(t, "StorageState", test.objectName, test.before, test.after, test.want)
		})
	}
}

// changeSpec creates an object, and requires that a change of its spec is answered as the test wants.
func changeSpec(t *testing.T, kind, name, before, after string, want refusal) {
	t.Helper()
	t.Cleanup(func() { shared.clear(t) })
	object := shared.createWithStatus(t, objectOf(t, kind, name, "spec", before))
	setPart(t, object, "spec", after)
	_, err := shared.resourceOf(object).Update(t.Context(), object, strictUpdate)
	requireAnswer(t, err, want)
}
