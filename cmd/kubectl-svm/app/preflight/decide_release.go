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

package preflight

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TargetServer is a release or an API server that has to read the stored objects.
type TargetServer struct {
	// Name is its name in messages.
	Name string
	// Release is its Kubernetes release.
	Release releases.Minor
	// Serves has the hashes of the kinds and versions that it serves itself. It is nil if no server was asked.
	Serves map[string]bool
}

// releaseTarget returns a release as a target. No server is asked.
func releaseTarget(release releases.Minor) TargetServer {
	return TargetServer{Name: "Kubernetes " + release.String(), Release: release}
}

// unknown reports whether the release is older or newer than those that there are data of.
func (t *TargetServer) unknown() bool {
	oldest, newest := releases.Known()
	return t.Release < oldest || t.Release > newest
}

// decideTarget returns why a target cannot read or serve what the StorageStates claim.
func decideTarget(in Snapshot, target TargetServer) Findings {
	var found Findings
	oldest, newest := releases.Known()
	if target.unknown() {
		severity := Error // Objects may be unreadable without a finding.
		if target.Serves != nil {
			severity = Warning // The server itself reported what it serves.
		}
		found.add(severity, CodeReleaseUnknown, "", "this plugin knows what Kubernetes %s to %s can read, but only part of "+
			"what %s can read. Run a plugin that knows that release, and read the release notes", oldest, newest, target.Name)
	}
	found.aboutManager(in)
	found.aboutMissing(in)
	for i := range in.States {
		found = append(found, decideTargetOf(in, &in.States[i], target)...)
	}
	return found
}

// Unreadable returns why a release cannot read what the servers write of a resource, and whether that is known. No
// release decides that about resources that are not kube-apiserver's own.
func Unreadable(state *migrationv1alpha1.StorageState, release releases.Minor) (found Findings, known bool) {
	target := releaseTarget(release)
	if builtIn := releases.BuiltIn(state.GroupResource().Group); !builtIn || target.unknown() {
		return nil, !builtIn && noReleaseDecides(state)
	}
	found.aboutEncoding(Snapshot{}, state, state.Status.CurrentStorageVersionHash, state.Status.CurrentEncodingVersion,
		target)
	return slices.DeleteFunc(found, func(f Finding) bool { return f.Code != CodeEncodingUnreadable }), true
}

// decideTargetOf is about one resource. No release of Kubernetes decides which versions of custom resources, and of
// resources of aggregated servers, can be read. So nothing about them is an error.
func decideTargetOf(in Snapshot, state *migrationv1alpha1.StorageState, target TargetServer) Findings {
	var found Findings
	found.aboutDoubt(in, state)
	if !servesAgain(state, target) {
		found.aboutAgreement(state)
	}
	for j, hash := range state.Status.PersistedStorageVersionHashes {
		encoding := hash
		if j < len(state.Status.PersistedEncodingVersions) {
			encoding = state.Status.PersistedEncodingVersions[j]
		}
		if hash != migrationv1alpha1.Unknown {
			found.aboutEncoding(in, state, hash, encoding, target)
		}
	}
	byRelease := releases.BuiltIn(state.GroupResource().Group) || !noReleaseDecides(state)
	if hashes := state.Status.PersistedStorageVersionHashes; byRelease &&
		(len(hashes) == 0 || slices.Contains(hashes, migrationv1alpha1.Unknown)) {
		found.add(Error, CodeEncodingsUnknown, state.Name, "objects may be stored in versions that were not recorded, so "+
			"it is not known whether %s can read them. Before an upgrade, wait until they are migrated. Before a roll back, "+
			"read docs/tasks.md, Roll back", target.Name)
	}
	for i := range found {
		if !byRelease {
			found[i].Level = Warning
		}
	}
	return found
}

// aboutEncoding is about one version in which objects may be stored.
func (fs *Findings) aboutEncoding(
	in Snapshot, state *migrationv1alpha1.StorageState, hash, encoding string, target TargetServer,
) {
	// A version that nobody knows any more is a hash, which says nothing about a group.
	version, _ := schema.ParseGroupVersion(encoding)
	if !releases.BuiltIn(state.GroupResource().Group) {
		switch {
		case target.Serves[hash]:
		case !noReleaseDecides(state):
			fs.add(Error, CodeEncodingUnreadable, state.Name, "objects may be stored as %s. It is not known whether %s can "+
				"read them, because this plugin has no data of the group, and the StorageState does not show that the resource "+
				"is one of a CustomResourceDefinition or of an aggregated server. Run a plugin that knows the release of the "+
				"API servers, and read the release notes", encoding, target.Name)
		case target.Serves != nil:
			fs.add(Warning, CodeEncodingNotServed, state.Name, "objects may be stored as %s, which %s does not serve. It "+
				"can read them only if its CustomResourceDefinition has the version", encoding, target.Name)
		}
		return
	}
	kind, support := supportOf(version, hash, target)
	current := schema.GroupVersionKind{Group: state.GroupResource().Group, Kind: kind.Kind}
	migrate := adviceOn(in, state, hash)
	_, newest := releases.Known()
	served, onRequest := offer(kind, target)
	switch {
	case support.Reads == releases.No && !served && precedes(kind, target) && precedes(current, target):
		fs.add(Warning, CodeResourceGone, state.Name, "%s does not have %s yet. Its objects stay in etcd, and no client "+
			"can read them until the API servers are upgraded again", target.Name, state.Name)
	case support.Reads == releases.No:
		fs.add(Error, CodeEncodingUnreadable, state.Name, "objects may be stored as %s, which %s cannot read. %s",
			encoding, target.Name, migrate)
	case support.Reads == releases.NotKnown && target.Serves != nil && !writtenUnserved(state, hash, support):
		fs.add(Error, CodeEncodingUnreadable, state.Name, "objects may be stored as %s, which %s does not serve. It is "+
			"not known whether it can read them, because this plugin has no data of that release. %s",
			encoding, target.Name, migrate)
	case support.Serves == releases.No && support.Reads == releases.NotKnown && support.Removed > newest:
		// What known releases do not serve, they still read: ReleaseUnknown says all that there is to say.
		fs.add(Warning, CodeEncodingNotServed, state.Name, "objects may be stored as %s, which %s does not serve any more. "+
			"It is not known whether it can still read them. %s", encoding, target.Name, migrate)
	case !served && len(onRequest) > 0:
		fs.add(Warning, CodeNotServedByDefault, state.Name, "%s does not serve this resource, or not by default. "+
			"Enable %s with --runtime-config, and the feature gate of the resource if there is one. Until then no client "+
			"can read its objects", target.Name, strings.Join(onRequest, " or "))
	}
}

// adviceOn says what helps if a target cannot read a version in which objects may be stored.
func adviceOn(in Snapshot, state *migrationv1alpha1.StorageState, hash string) string {
	switch state.Status.CurrentStorageVersionHash {
	case hash:
		return fmt.Sprintf("A migration does not help, because the current API servers write this version. If there "+
			"are objects ("+cli.Kubectl+" get %s --all-namespaces), do not change to that release", state.Name)
	case migrationv1alpha1.Unknown:
		return "The API servers do not agree on a version, so nothing can be migrated now. If an upgrade is under way, " +
			"finish it first. Run the command again when they agree"
	}
	return adviceToMigrate(in.Manager, state)
}

// adviceToMigrate says who migrates the objects of a resource. A person who creates another migration while the manager
// works on one has all objects rewritten twice.
func adviceToMigrate(manager assess.Manager, state *migrationv1alpha1.StorageState) string {
	reason := ""
	if c := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated); c != nil {
		reason = c.Reason
	}
	switch reason {
	case migrationv1alpha1.StateReasonMigrationSuspended:
		if !manager.ObservesOnly {
			return fmt.Sprintf("Their migration is suspended. To continue it: "+cli.SVM+" resume %s", state.Name)
		}
	case migrationv1alpha1.StateReasonMigrationRunning, migrationv1alpha1.StateReasonMigrationQueued,
		migrationv1alpha1.StateReasonAwaitingAgreement:
		if manager.Migrates() && !assess.Paused(state) {
			return fmt.Sprintf("The manager migrates them: "+cli.SVM+" status %s --watch", state.Name)
		}
	}
	return "Migrate them first: " + howToMigrate(manager, state.Name)
}

// howToMigrate says how a person has the objects of a resource migrated. Where the manager only observes, nobody
// carries out a migration.
func howToMigrate(manager assess.Manager, name string) string {
	if manager.ObservesOnly {
		return "let a manager run the migrator (--controllers), or migrate as yourself with " + cli.SVM + " run " + name
	}
	return cli.SVM + " migrate " + name + " --wait"
}

// precedes reports whether a target is older than all releases that have the kind. Such a target does not list its
// objects, so it does not fail to read them.
func precedes(kind schema.GroupVersionKind, target TargetServer) bool {
	return kind.Kind != "" && releases.Precedes(target.Release, kind.GroupKind())
}

// writtenUnserved reports whether the API servers write a version that no known release serves, as they write
// CustomResourceDefinitions at v1beta1. That another server does not serve it either says nothing then.
func writtenUnserved(state *migrationv1alpha1.StorageState, hash string, support releases.Support) bool {
	oldest, _ := releases.Known()
	return hash == state.Status.CurrentStorageVersionHash && support.Removed != 0 && support.Removed <= oldest
}

// noReleaseDecides reports whether the resource is one of a definition or of an aggregated server. It is false if that
// is not known: there is no evidence, or its source is one of a later release.
func noReleaseDecides(state *migrationv1alpha1.StorageState) bool {
	evidence := state.Status.Evidence
	return evidence != nil && (evidence.Source == migrationv1alpha1.EvidenceFromCustomResourceDefinition ||
		evidence.Source == migrationv1alpha1.EvidenceFromAggregatedDiscovery)
}

// supportOf returns what a target does with an encoding of kube-apiserver.
func supportOf(
	version schema.GroupVersion, hash string, target TargetServer,
) (schema.GroupVersionKind, releases.Support) {
	if target.Serves[hash] {
		return schema.GroupVersionKind{}, releases.Support{Reads: releases.Yes, Serves: releases.Yes}
	}
	for _, kind := range releases.Kinds(version) {
		if storageversion.Hash(version, kind) == hash {
			gvk := version.WithKind(kind)
			return gvk, releases.SupportOf(gvk, target.Release)
		}
	}
	// No release has such a kind at that version.
	return schema.GroupVersionKind{}, releases.SupportOf(version.WithKind(""), target.Release)
}

// offer returns whether a target serves a kind, and at which other versions its flag --runtime-config lets it.
func offer(kind schema.GroupVersionKind, target TargetServer) (served bool, onRequest []string) {
	for _, version := range releases.Versions(kind.GroupKind()) {
		gvk := kind.GroupKind().WithVersion(version)
		switch {
		case target.Serves[storageversion.Hash(gvk.GroupVersion(), gvk.Kind)]:
			served = true
		case releases.SupportOf(gvk, target.Release).Serves != releases.Yes:
		case target.Serves == nil && releases.ByDefault(version):
			served = true
		default:
			onRequest = append(onRequest, gvk.GroupVersion().String())
		}
	}
	return served, onRequest
}

// servesAgain reports whether a target reads and serves all that is stored of a resource that no server serves now.
func servesAgain(state *migrationv1alpha1.StorageState, target TargetServer) bool {
	agreed := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateAgreed)
	if agreed == nil || agreed.Reason != migrationv1alpha1.StateReasonNotServed {
		return false
	}
	for i, encoding := range state.Status.PersistedEncodingVersions {
		version, err := schema.ParseGroupVersion(encoding)
		if err != nil || i >= len(state.Status.PersistedStorageVersionHashes) {
			return false
		}
		hash := state.Status.PersistedStorageVersionHashes[i]
		kind, support := supportOf(version, hash, target)
		served, _ := offer(kind, target)
		if support.Reads != releases.Yes || !served && !target.Serves[hash] {
			return false
		}
	}
	return len(state.Status.PersistedEncodingVersions) > 0
}
