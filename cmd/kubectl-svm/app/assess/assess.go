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

// Package assess concludes from StorageStates and migrations what a person wants to know about each resource: whether
// it is safe, what happens next and when, and which command helps. It is pure, but for FindManager.
package assess

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

// Attention says who has to do something about a resource.
type Attention string

const (
	// Act: nothing changes until a person does something.
	Act Attention = "Act"
	// Wait: the manager continues without a person.
	Wait Attention = "Wait"
	// None: the resource is safe.
	None Attention = "None"
)

// ReasonNotObserved is the reason of a resource without a StorageState, or with one that another controller has
// written.
const ReasonNotObserved = "NotObserved"

// WhyNotWritten says why StorageStates are missing although a manager leads.
var WhyNotWritten = "Its log says why: mostly it reaches none of the API servers, whose addresses are those of " +
	"\"" + cli.Kubectl + " get endpointslices -n default -l kubernetes.io/service-name=kubernetes\". Or a webhook " +
	"refuses StorageStates, or its --controllers lack the trigger."

// ReasonNotConfirmed is the reason of a StorageState that was safe, and that the trigger has not confirmed of late.
const ReasonNotConfirmed = "NotConfirmed"

// Resource is what is known about one resource. Its JSON is what -o json prints.
type Resource struct {
	schema.GroupResource `json:"-"`
	Name                 string `json:"name"`
	// Safe is whether nothing but the current version is needed to read what is stored.
	Safe bool `json:"safe"`
	// Attention is who has to do something.
	Attention Attention `json:"attention"`
	// Stored are the versions in which objects may be stored.
	Stored []string `json:"stored"`
	// Written is the version that the servers write, or Unknown.
	Written string `json:"written"`
	// Agreed is whether all servers write it and have done so for the settle period.
	Agreed bool `json:"agreed"`
	// Reason and Message are those of the condition SafeToRemoveOldVersions, or of what is more exact.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Next is what happens next, in a few words, and NextTime is when, if that is known.
	Next     string       `json:"next,omitempty"`
	NextTime *metav1.Time `json:"nextTime,omitempty"`
	// Verb is the subcommand that helps, if one does. Its argument is Name.
	Verb string `json:"verb,omitempty"`
	// Permission is a command to run before it, which gives the manager a permission that the manifests do not give.
	Permission string `json:"permission,omitempty"`
	// Remark is what a person should know of a resource that is safe. It is not about stored versions.
	Remark string `json:"remark,omitempty"`
	// Migration is the one that runs, waits or failed last, if there is one.
	Migration *Migration `json:"migration,omitempty"`

	State *migrationv1alpha1.StorageState `json:"-"`
	// Gone is whether nothing is left but migrations that have ended, so that a person need not act either.
	Gone bool `json:"-"`
}

// Migration is how far a migration is.
type Migration struct {
	Name string `json:"name"`
	// State is the type of its condition that is True, or Pending, or Deleting. Reason and Message are those of that
	// condition.
	State   migrationv1alpha1.MigrationConditionType `json:"state"`
	Reason  string                                   `json:"reason,omitempty"`
	Message string                                   `json:"message,omitempty"`
	// The counters are those of status.progress, without the token.
	migrationv1alpha1.MigrationProgress `json:",inline"`
	EstimatedCompletionTime             *metav1.Time `json:"estimatedCompletionTime,omitempty"`
}

// Ended reports whether the migration has ended, with success or without.
func (m *Migration) Ended() bool {
	return m.State == migrationv1alpha1.MigrationSucceeded || m.State == migrationv1alpha1.MigrationFailed
}

// Failing reports whether the requests of the migration fail. Its message has the last answer.
func (m *Migration) Failing() bool {
	return m != nil && cli.Failing(migrationv1alpha1.MigrationCondition{Reason: m.Reason})
}

// Resources assesses resources, those that need a person first, then those that run, then those
// that take time.
func Resources(
	cluster *cli.Cluster, resources []schema.GroupResource, manager Manager, now time.Time,
) []Resource {
	assessed, all := make([]Resource, 0, len(resources)), newIndex(cluster)
	for _, resource := range resources {
		assessed = append(assessed, assess(all, resource, manager, now))
	}
	order := []Attention{Act, Wait, None}
	slices.SortStableFunc(assessed, func(a, b Resource) int {
		return cmp.Or(slices.Index(order, a.Attention)-slices.Index(order, b.Attention),
			runsFirst(&a)-runsFirst(&b), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Name, b.Name))
	})
	return assessed
}

func runsFirst(r *Resource) int {
	if r.Reason == migrationv1alpha1.StateReasonMigrationRunning {
		return 0
	}
	return 1
}

// index finds what there is about a resource. There may be thousands of each.
type index struct {
	states map[schema.GroupResource]*migrationv1alpha1.StorageState
	// migrations are the newest first.
	migrations map[schema.GroupResource][]*migrationv1alpha1.StorageVersionMigration
	// definitions are the CustomResourceDefinitions by name, as far as they were read.
	definitions map[string]*metav1.ObjectMeta
	catalog     *cli.Catalog
}

func newIndex(cluster *cli.Cluster) *index {
	all := &index{
		states:     map[schema.GroupResource]*migrationv1alpha1.StorageState{},
		migrations: map[schema.GroupResource][]*migrationv1alpha1.StorageVersionMigration{},

		definitions: cluster.Definitions, catalog: cluster.Catalog,
	}
	for i := range cluster.States {
		all.states[cluster.States[i].GroupResource()] = &cluster.States[i]
	}
	migrations := slices.Clone(cluster.Migrations)
	cli.NewestFirst(migrations)
	for i := range migrations {
		m := &migrations[i]
		all.migrations[m.GroupResource()] = append(all.migrations[m.GroupResource()], m)
	}
	return all
}

func assess(all *index, resource schema.GroupResource, manager Manager, now time.Time) Resource {
	r := Resource{
		GroupResource: resource, Name: resource.String(), Attention: Wait, Stored: []string{migrationv1alpha1.Unknown},
		Written: migrationv1alpha1.Unknown, State: all.states[resource],
	}
	if r.State == nil && all.catalog.Gone(resource) {
		r.Reason, r.Message = migrationv1alpha1.StateReasonNotServed, "The API server does not serve the resource, and only "+
			"migrations that have ended name it: its CustomResourceDefinition was deleted, and its objects with it, or the "+
			"name is wrong. Nothing is left to do."
		r.Migration = Describe(latest(all, resource, nil))
		r.leaveToPerson("it is gone", "")
		r.Gone = true
		return r
	}
	if r.State == nil && all.catalog.Unstored(resource) {
		r.Reason, r.Message = ReasonNotObserved, "The server of the resource does not publish in which version it stores "+
			"objects, so the manager keeps no StorageState. Most such servers store none."
		r.Migration = Describe(latest(all, resource, nil))
		r.leaveToPerson("nothing is recorded", "")
		return r
	}
	if r.State == nil || !Observed(r.State) {
		r.Reason, r.Message = ReasonNotObserved, "The trigger has not written a StorageState of the resource yet."
		r.Next = "the trigger records it"
		r.Migration = Describe(latest(all, resource, nil))
		if manager.Established && releases.BuiltIn(resource.Group) { // A custom resource may be new.
			r.Message = "The manager that leads has not written a StorageState of the resource. " + WhyNotWritten
			r.leaveToPerson("the manager does not record it", "")
		}
		return r
	}
	status := &r.State.Status
	if len(status.PersistedEncodingVersions) > 0 {
		r.Stored = status.PersistedEncodingVersions
	}
	r.Written = cmp.Or(status.CurrentEncodingVersion, migrationv1alpha1.Unknown)
	r.Agreed = meta.IsStatusConditionTrue(status.Conditions, migrationv1alpha1.StorageStateAgreed)
	if safe := meta.FindStatusCondition(
		status.Conditions, migrationv1alpha1.StorageStateSafeToRemoveOldVersions); safe != nil {
		r.Safe, r.Reason, r.Message = safe.Status == metav1.ConditionTrue, safe.Reason, safe.Message
	}
	doubt := cmp.Or(DoubtByDefinition(r.State, all.definitions[r.Name]), Doubt(r.State, now))
	if r.Safe && doubt != "" {
		r.Safe, r.Reason, r.Message, r.Next = false, ReasonNotConfirmed, doubt, "the trigger confirms it"
		return r
	}
	if r.Safe {
		r.Attention, r.Remark = None, remark(all.migrations[resource])
		return r
	}
	r.Migration = Describe(latest(all, resource, r.State))
	r.conclude(now)
	return r
}

// Observed reports whether the trigger has written a StorageState. A person or another controller may have made it.
func Observed(state *migrationv1alpha1.StorageState) bool {
	return state.Status.Epoch > 0 && len(state.Status.Conditions) > 0
}

// DoubtByDefinition says why a StorageState is no proof because of the CustomResourceDefinition of the resource, or
// nothing. The definition is nil if there is none, or if it was not read.
func DoubtByDefinition(state *migrationv1alpha1.StorageState, definition *metav1.ObjectMeta) string {
	if definition == nil {
		return ""
	}
	if evidence := state.Status.Evidence; evidence != nil && evidence.CustomResourceDefinition != nil &&
		evidence.CustomResourceDefinition.UID == definition.UID &&
		evidence.CustomResourceDefinition.Generation >= definition.Generation {
		return ""
	}
	return "The StorageState does not describe the current CustomResourceDefinition. The trigger observes a change " +
		"within seconds: run the command again, and look at the log of the manager if this stays."
}

// remark returns the Remark of a resource that is safe. Its migrations are the newest first.
func remark(migrations []*migrationv1alpha1.StorageVersionMigration) string {
	if len(migrations) == 0 || !migrations[0].IsConditionTrue(migrationv1alpha1.MigrationFailed) {
		return ""
	}
	failed, effect := Describe(migrations[0]), "if it was for a new encryption key, some objects may still use the old key"
	if migrations[0].HasEpoch() {
		effect = "managedFields may still have entries of versions that are not served"
	}
	return fmt.Sprintf("All objects are stored in the current version. But the newest migration failed: %s. %s failed, "+
		"%s: %s", effect, failed.Name, failed.Reason, failed.Message)
}

// Doubt says why a StorageState is too old to rely on, or nothing. The trigger writes it at least once an hour.
func Doubt(state *migrationv1alpha1.StorageState, now time.Time) string {
	silent := now.Sub(state.Status.LastHeartbeatTime.Time)
	if silent < -clockTolerance {
		return fmt.Sprintf("The trigger confirmed the StorageState %s in the future, so it is not known how old that is: "+
			SetClocks+".", duration.HumanDuration(-silent))
	}
	if silent <= longestSilence {
		return ""
	}
	if state.Status.LastHeartbeatTime.IsZero() {
		return "The trigger has not confirmed the StorageState yet."
	}
	return fmt.Sprintf("The trigger has not confirmed the StorageState for %s, so servers may write another version by "+
		"now. Run a manager whose --controllers include the trigger, and look at its log.", duration.HumanDuration(silent))
}

// latest returns the migration of a resource that matters: one that has not ended, or the last one that failed.
func latest(
	all *index, resource schema.GroupResource, state *migrationv1alpha1.StorageState,
) *migrationv1alpha1.StorageVersionMigration {
	var found, kept *migrationv1alpha1.StorageVersionMigration
	succeeded := false // A failure before a success does not matter any more, unless the trigger waits because of it.
	for _, m := range all.migrations[resource] {
		switch {
		case m.Kept():
			if IsAttempt(state, m) {
				kept = m
			}
		case m.IsConditionTrue(migrationv1alpha1.MigrationRunning):
			return m
		case m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded):
			succeeded = true
		case found == nil && (!m.Finished() || !succeeded || failedLast(state, m)):
			found = m
		case found != nil && found.Finished() && !m.Finished():
			found = m
		}
	}
	if kept != nil && (found == nil || found.Finished() && waitsFor(state)) {
		return kept
	}
	return found
}

// waitsFor reports whether a state waits for a migration that has not begun, or not been created, yet.
func waitsFor(state *migrationv1alpha1.StorageState) bool {
	migrated := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	return migrated != nil && migrated.Reason == migrationv1alpha1.StateReasonMigrationQueued
}

// IsAttempt reports whether a state names a migration as the present attempt of the trigger. If it is being deleted,
// the next one is created when it is gone.
func IsAttempt(state *migrationv1alpha1.StorageState, m *migrationv1alpha1.StorageVersionMigration) bool {
	return state != nil && state.Status.Migration != nil && state.Status.Migration.UID == m.UID
}

// failedLast reports whether a state names a migration as the one that failed last.
func failedLast(state *migrationv1alpha1.StorageState, m *migrationv1alpha1.StorageVersionMigration) bool {
	if state == nil || state.Status.Backoff == nil || state.Status.Backoff.LastFailedMigration == nil {
		return false
	}
	return state.Status.Backoff.LastFailedMigration.UID == m.UID
}

// Describe returns how far a migration is, or nil if there is no migration.
func Describe(m *migrationv1alpha1.StorageVersionMigration) *Migration {
	if m == nil {
		return nil
	}
	state := cli.CurrentCondition(m)
	described := &Migration{
		Name: m.Name, State: state.Type, Reason: state.Reason, Message: state.Message,
		EstimatedCompletionTime: m.Status.EstimatedCompletionTime,
	}
	if p := m.Status.Progress; p != nil {
		described.MigrationProgress = *p
		described.ContinueToken = ""
	}
	return described
}

// Short is a version without the group of its resource, which the name of the resource has already.
func (r *Resource) Short(version string) string {
	return strings.TrimPrefix(version, r.Group+"/")
}

// ShortStored are the versions in which objects may be stored, without the group.
func (r *Resource) ShortStored() string {
	var versions []string
	for _, version := range r.Stored {
		versions = append(versions, r.Short(version))
	}
	return strings.Join(versions, ",")
}
