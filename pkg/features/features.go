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

// Package features holds the feature gates of the manager: one for each controller and one for each optional ability.
//
// Versions in the specifications are those of the Kubernetes libraries that a release is built on, because gates of those
// libraries (logging, metrics, zpages) live in the same set.
package features

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	zpagesfeatures "k8s.io/component-base/zpages/features"
)

const (
	// StorageVersionGarbageCollector guards the controller that removes what departed API servers left behind in
	// StorageVersion objects.
	StorageVersionGarbageCollector featuregate.Feature = "StorageVersionGarbageCollector"
	// StorageVersionMigrationTrigger guards the controller that records which encodings may be stored in StorageStates and
	// creates the migrations that are due.
	StorageVersionMigrationTrigger featuregate.Feature = "StorageVersionMigrationTrigger"
	// StorageVersionMigrator guards the controller that rewrites the objects of StorageVersionMigrations.
	StorageVersionMigrator featuregate.Feature = "StorageVersionMigrator"
	// StatusSubresourceFallback has the migrator try objects that the API server refused to rewrite once more by way of their
	// status subresource, which admission rules often leave alone and which stores the whole object.
	StatusSubresourceFallback featuregate.Feature = "StatusSubresourceFallback"
	// CRDStoredVersionsPruning has the migrator take old versions from a CustomResourceDefinition's status.storedVersions when
	// no object is stored in them any more.
	CRDStoredVersionsPruning featuregate.Feature = "CRDStoredVersionsPruning"
	// CRDManagedFieldsCleaning has the migrator drop managedFields entries of custom resources that name versions which are
	// served no longer: the API server refuses server-side apply of objects that have one. It changes objects.
	CRDManagedFieldsCleaning featuregate.Feature = "CRDManagedFieldsCleaning"
)

// kubernetesVersion is the minor version of the Kubernetes libraries that go.mod requires; a test holds them together.
const kubernetesVersion = "1.37"

// DefaultMutableFeatureGate is the set of gates that flags change. Only the command, and programs that add gates for
// controllers of their own, use it; everything else reads DefaultFeatureGate.
var DefaultMutableFeatureGate featuregate.MutableVersionedFeatureGate = featuregate.NewVersionedFeatureGate(version.MustParse(kubernetesVersion))

// DefaultFeatureGate tells whether a gate is on.
var DefaultFeatureGate featuregate.FeatureGate = DefaultMutableFeatureGate

func init() {
	utilruntime.Must(DefaultMutableFeatureGate.AddVersioned(specifications))
	utilruntime.Must(logsapi.AddFeatureGates(DefaultMutableFeatureGate))
	utilruntime.Must(metricsfeatures.AddFeatureGates(DefaultMutableFeatureGate))
	utilruntime.Must(zpagesfeatures.AddFeatureGates(DefaultMutableFeatureGate))
}

var specifications = map[featuregate.Feature]featuregate.VersionedSpecs{
	StorageVersionGarbageCollector: {
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
	},
	StorageVersionMigrationTrigger: {
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
	},
	StorageVersionMigrator: {
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
	},
	StatusSubresourceFallback: {
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
	},
	CRDStoredVersionsPruning: {
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
	},
	CRDManagedFieldsCleaning: {
		{Version: version.MustParse("1.37"), Default: false, PreRelease: featuregate.Alpha},
	},
}
