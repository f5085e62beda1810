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

// Package features has the feature gates of the manager: one for each controller and one for each optional ability.
//
// The versions in the specifications are those of the Kubernetes libraries that a release is built with, because the
// gates of these libraries (logging, metrics, zpages) are in the same set.
package features

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	componentversion "k8s.io/component-base/version"
	zpagesfeatures "k8s.io/component-base/zpages/features"
)

const (
	// StorageVersionGarbageCollector enables the controller that removes what departed API servers left behind in
	// StorageVersion objects.
	StorageVersionGarbageCollector featuregate.Feature = "StorageVersionGarbageCollector"
	// StorageVersionMigrationTrigger enables the controller that records in StorageStates which encodings may be stored,
	// and creates the migrations that are due.
	StorageVersionMigrationTrigger featuregate.Feature = "StorageVersionMigrationTrigger"
	// StorageVersionMigrator enables the controller that rewrites the objects of StorageVersionMigrations.
	StorageVersionMigrator featuregate.Feature = "StorageVersionMigrator"
	// StatusSubresourceFallback lets the migrator try denied objects again through their status subresource. A write to it
	// stores the whole object, and admission rules often do not apply to it.
	StatusSubresourceFallback featuregate.Feature = "StatusSubresourceFallback"
	// CRDStoredVersionsPruning lets the migrator remove old versions from status.storedVersions of a
	// CustomResourceDefinition when no object is stored in them any more.
	CRDStoredVersionsPruning featuregate.Feature = "CRDStoredVersionsPruning"
	// CRDManagedFieldsCleaning lets the migrator remove entries of managedFields that name a version which is not served
	// any more. When that version leaves the definition, the API server refuses server-side apply of custom resources with
	// such an entry. This changes objects.
	CRDManagedFieldsCleaning featuregate.Feature = "CRDManagedFieldsCleaning"
)

// DefaultMutableFeatureGate is the set of gates that flags change. Only the command uses it, and programs that add
// gates for controllers of their own. All other code reads DefaultFeatureGate.
var DefaultMutableFeatureGate featuregate.MutableVersionedFeatureGate = featuregate.NewVersionedFeatureGate(
	version.MustParse(componentversion.DefaultKubeBinaryVersion))

// DefaultFeatureGate says whether a gate is on.
var DefaultFeatureGate featuregate.FeatureGate = DefaultMutableFeatureGate

func init() {
	utilruntime.Must(DefaultMutableFeatureGate.AddVersioned(specifications))
	utilruntime.Must(logsapi.AddFeatureGates(DefaultMutableFeatureGate))
	utilruntime.Must(metricsfeatures.AddFeatureGates(DefaultMutableFeatureGate))
	utilruntime.Must(zpagesfeatures.AddFeatureGates(DefaultMutableFeatureGate))
}

var v1_37 = version.MustParse("1.37")

var specifications = map[featuregate.Feature]featuregate.VersionedSpecs{
	StorageVersionGarbageCollector: {{Version: v1_37, Default: true, PreRelease: featuregate.Beta}},
	StorageVersionMigrationTrigger: {{Version: v1_37, Default: true, PreRelease: featuregate.Beta}},
	StorageVersionMigrator:         {{Version: v1_37, Default: true, PreRelease: featuregate.Beta}},
	StatusSubresourceFallback:      {{Version: v1_37, Default: true, PreRelease: featuregate.Beta}},
	CRDStoredVersionsPruning:       {{Version: v1_37, Default: true, PreRelease: featuregate.Beta}},
	CRDManagedFieldsCleaning:       {{Version: v1_37, Default: false, PreRelease: featuregate.Alpha}},
}
