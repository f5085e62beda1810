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

package suite

// Labels of specs. They select specs with --ginkgo.label-filter, for example 'HA && !Slow'.
const (
	// LabelConformance marks specs that are safe on a cluster in use: they touch only objects of their own, clean up,
	// and run beside each other.
	LabelConformance = "Conformance"
	// LabelDisruptive marks specs that disturb other users of the cluster. They run one at a time, and only with control.
	LabelDisruptive = "Disruptive"
	// LabelSlow marks specs that take more than a minute.
	LabelSlow = "Slow"
	// labelFeature and labelController are the beginnings of labels with a name.
	labelFeature    = "Feature:"
	labelController = "Controller:"
)

// Profile is a part of the work that an implementation may claim to do. Its name is a label of its specs.
type Profile string

// Profiles.
const (
	// ProfileRewrite: a migration rewrites all objects of a resource, once, changes nothing, and says how it ended.
	ProfileRewrite Profile = "REWRITE"
	// ProfileKnowledge: there is a record of the encodings in which objects may be stored.
	ProfileKnowledge Profile = "KNOWLEDGE"
	// ProfileHA: several API servers may write different encodings.
	ProfileHA Profile = "HA"
	// ProfileCRD: versions of CustomResourceDefinitions come and go.
	ProfileCRD Profile = "CRD"
	// ProfileResilience: processes end, and requests fail for a while.
	ProfileResilience Profile = "RESILIENCE"
	// ProfileSecurity: the identity that rewrites everything can do nothing else.
	ProfileSecurity Profile = "SECURITY"
)

// Profiles are all profiles, in the order of reports.
var Profiles = []Profile{
	ProfileRewrite, ProfileKnowledge, ProfileHA, ProfileCRD, ProfileResilience, ProfileSecurity,
}

// Feature is an ability beyond the core of a profile. A spec that needs a feature which the implementation does not
// declare is reported as not supported.
type Feature string

// Features.
const (
	// FeatureKnowledge: there is a record for each resource of what may be stored, a StorageState.
	FeatureKnowledge Feature = "Knowledge"
	// FeatureTrigger: a migration starts by itself when the storage version changes.
	FeatureTrigger Feature = "Trigger"
	// FeatureDeniedObjects: a migration rewrites all other objects when one is denied, and names that one.
	FeatureDeniedObjects Feature = "DeniedObjects"
	// FeaturePruning: status.storedVersions of a CustomResourceDefinition is pruned after a migration.
	FeaturePruning Feature = "Pruning"
	// FeatureProgress: a migration counts its objects.
	FeatureProgress Feature = "Progress"
	// FeatureHistory: knowledge does not rely on status.storedVersions, which people edit.
	FeatureHistory Feature = "History"
	// FeatureGarbageCollection: entries of StorageVersion objects go when their API server is gone.
	FeatureGarbageCollection Feature = "GarbageCollection"
	// FeatureFence: the API servers refuse everything but no-op writes of the identity.
	FeatureFence Feature = "Fence"
	// FeaturePrivacy: reports about denied objects have no values of their fields.
	FeaturePrivacy Feature = "Privacy"
)

// Controller is a controller that a spec is about.
type Controller string

// Controllers.
const (
	ControllerMigrator  Controller = "migrator"
	ControllerTrigger   Controller = "trigger"
	ControllerCollector Controller = "garbage-collector"
)

// Need is something that a run must be given for a spec. A spec whose needs are not met is skipped.
type Need string

// Needs.
const (
	// NeedEtcd: the run can read etcd.
	NeedEtcd Need = "access to etcd (--etcd-endpoints)"
	// NeedControl: the run can end and start API servers and the implementation.
	NeedControl Need = "control over processes (--control)"
	// NeedServers: there are several API servers, which the run controls.
	NeedServers Need = "several API servers under control (--control)"
	// NeedIdentity: the identity of the implementation is known.
	NeedIdentity Need = "the user name of the implementation (--identity)"
	// NeedWebhooks: API servers reach webhooks in the process of the run.
	NeedWebhooks Need = "an address where API servers reach webhooks (--webhook-address)"
	// NeedStorageVersions: the API servers serve StorageVersion objects.
	NeedStorageVersions Need = "the StorageVersion API (feature gate StorageVersionAPI of kube-apiserver)"
)
