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
// A StorageState tells, for one resource, which encodings its stored objects may have and which one they are written in
// today. A StorageVersionMigration asks for every stored object of one resource to be rewritten, and tells how far that
// went.
//
// The group, the version and every field of kube-storage-version-migrator's API are kept, by name and by meaning, so that
// its objects stay valid and readable when the CustomResourceDefinitions of this module replace its own. All other fields
// are optional. No validation of this version makes a stored object impossible to update: a rule that an old object may
// break holds at creation and for what changes, never for what merely stays.
package v1alpha1
