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

// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +groupName=migration.k8s.io

// Package v1alpha1 is the migration.k8s.io/v1alpha1 API.
//
// A StorageState says, for one resource, in which encodings its objects may be stored and in which one they are written
// now. A StorageVersionMigration requests that every stored object of one resource is rewritten, and shows the
// progress.
//
// The API keeps the group, the version and all fields of kube-storage-version-migrator's API, with their names and
// meanings. So the objects of that program stay valid and readable when the CustomResourceDefinitions of this module
// replace its own. All other fields are optional. No rule makes it impossible to update a stored object: a rule that an
// old object may break applies at creation and to what changes, and never to what stays as it is.
package v1alpha1
