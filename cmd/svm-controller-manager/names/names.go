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

// Package names has the names of the manager and of its controllers. Names of metrics and queues are in the package
// that uses them, aliases in the descriptors of package app.
//
// # Change policy
//
// The name of a controller never changes after a release has it, because command lines and
// dashboards contain it. A controller that does the job of a controller of Kubernetes has that controller's name. A
// name is a DNS label in lower case that ends in "-controller". A better name may only be added as an alias, and an
// alias is never removed.
package names

// Manager is the name of the binary, of its leader election lease, of its event source and of its user agent.
const Manager = "svm-controller-manager"

// VersionLabel is on the Lease of the leader. Its value is the version of the leader.
const VersionLabel = "app.kubernetes.io/version"

// Canonical names of controllers.
const (
	StorageVersionGarbageCollectorController = "storageversion-garbage-collector-controller"
	StorageVersionMigrationTriggerController = "storage-version-migration-trigger-controller"
	StorageVersionMigratorController         = "storage-version-migrator-controller"
)
