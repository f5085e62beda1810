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

package storageversion

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// maxAddressLength is how long an address in an evidence may be.
const maxAddressLength = 300

// aggregated knows the group versions that aggregated servers serve or once served.
type aggregated map[schema.GroupVersion]aggregatedVersion

type aggregatedVersion struct {
	// readFrom is the server of the last document that could be read. resources are those in it. One that is no longer
	// served stays, without versions, because its objects may still be stored.
	readFrom  string
	resources map[schema.GroupResource]Resource
	readAt    time.Time // when the last document that stands for all replicas was read
	// leadsTo is the server of the last document, and failure why that could not be read. It is empty if it could.
	leadsTo, failure string
	// whyReplicasDiffer is what the last document said that knew of the replicas.
	whyReplicasDiffer string
	// withdrawn is whether the group version has no APIService any more. Then nobody reads it again.
	withdrawn bool
	// handedSince is when an APIService handed the group version to an aggregated server.
	handedSince time.Time
	// failingSince is when the first document came that failed, or that does not stand for all replicas. It counts while
	// failure or whyReplicasDiffer is set.
	failingSince time.Time
}

// set records a document; nil means that no APIService hands the group version to an aggregated server anymore.
func (a aggregated) set(now time.Time, gv schema.GroupVersion, document *AggregatedDocument) {
	known, exists := a[gv]
	if known.failure == "" && known.whyReplicasDiffer == "" {
		known.failingSince = now
	}
	if document == nil {
		known.withdrawn, known.resources, known.failure, known.whyReplicasDiffer = true, known.withoutVersions(), "", ""
	} else {
		if !exists || known.withdrawn {
			known.handedSince = now
		}
		known.withdrawn, known.leadsTo = false, document.Address
		known.take(now, document)
	}
	a[gv] = known
}

// withoutVersions returns the resources as they are recorded when they are no longer served.
func (v *aggregatedVersion) withoutVersions() map[schema.GroupResource]Resource {
	resources := map[schema.GroupResource]Resource{}
	for resource, before := range v.resources {
		resources[resource] = Resource{Kind: before.Kind, Migratable: before.Migratable}
	}
	return resources
}

// take records what a document says.
func (v *aggregatedVersion) take(now time.Time, document *AggregatedDocument) {
	if document.Failure != "" {
		v.failure, v.whyReplicasDiffer = document.Failure, cmp.Or(document.WhyReplicasDiffer, v.whyReplicasDiffer)
		return
	}
	resources := v.withoutVersions()
	for resource, read := range document.Resources {
		if _, stored := resources[resource]; stored || read.Hash != "" {
			read.Hash = cmp.Or(read.Hash, Unknown)
			resources[resource] = read
		}
	}
	v.readFrom, v.resources, v.failure, v.whyReplicasDiffer = document.Address, resources, "", document.WhyReplicasDiffer
	if document.WhyReplicasDiffer == "" {
		v.readAt = now
	}
}

// moved reports whether the APIService leads to another server than the one that the last document is from. The other
// server may have another storage.
func (v aggregatedVersion) moved() bool { return v.failure != "" && v.leadsTo != v.readFrom }

// handed reports whether an APIService hands the group version to an aggregated server.
func (a aggregated) handed(gv schema.GroupVersion) bool {
	known, exists := a[gv]
	return exists && !known.withdrawn
}

// versions returns the group versions that have a resource, the preferred first.
func (a aggregated) versions(resource schema.GroupResource) []schema.GroupVersion {
	return slices.DeleteFunc(a.group(resource.Group), func(gv schema.GroupVersion) bool {
		_, has := a[gv].resources[resource]
		return !has
	})
}

// group returns the versions of a group, the preferred first.
func (a aggregated) group(group string) []schema.GroupVersion {
	var versions []schema.GroupVersion
	for gv := range a {
		if gv.Group == group {
			versions = append(versions, gv)
		}
	}
	slices.SortFunc(versions, func(a, b schema.GroupVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	return versions
}

// migratable reports whether clients can migrate a resource at any of its versions.
func (a aggregated) migratable(resource schema.GroupResource) bool {
	return slices.ContainsFunc(a.versions(resource), func(gv schema.GroupVersion) bool {
		return a[gv].resources[resource].Migratable
	})
}

// all returns the resources that any aggregated server ever served.
func (a aggregated) all() resourceSet {
	all := resourceSet{}
	for _, version := range a {
		all = all.Union(sets.KeySet(version.resources))
	}
	return all
}

// sighting returns what is written, if the documents of all group versions that have the resource could be read.
// Replicas that nobody read, and a server that took the place of another one, write in an unknown encoding. That is a
// sighting even if documents could not be read, because these servers may be gone before anybody asks them.
func (a aggregated) sighting(resource schema.GroupResource) (Sighting, bool) {
	evidence := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromAggregatedDiscovery}
	var writing []Encoding
	failed := false
	for _, gv := range a.versions(resource) {
		known := a[gv]
		failed = failed || known.failure != ""
		hash := known.resources[resource].Hash
		if hash != "" {
			writing = append(writing, hash)
		}
		if known.whyReplicasDiffer != "" || known.moved() {
			hash = Unknown
			writing = append(writing, hash)
		}
		evidence.Endpoints = append(evidence.Endpoints, endpoint(known.readFrom, gv, hash))
	}
	for _, gv := range a.unreadBeside(resource) {
		writing = append(writing, Unknown)
		evidence.Endpoints = append(evidence.Endpoints, endpoint(a[gv].leadsTo, gv, Unknown))
	}
	complete := !failed || slices.Contains(writing, Unknown)
	return Sighting{Evidence: evidence, Writing: sortedSet(writing)}, complete
}

// endpoint returns the evidence of one version. One service may serve several, and an address must be unique there.
func endpoint(service string, gv schema.GroupVersion, hash Encoding) migrationv1alpha1.EndpointEvidence {
	address := service + "/apis/" + gv.String()
	return migrationv1alpha1.EndpointEvidence{
		Address: address[max(0, len(address)-maxAddressLength):], StorageVersionHash: hash,
	}
}

// unreadBeside returns the other versions of the group that may have the resource too. Such a version has an
// APIService that leads to a server whose document could not be read, and this server serves no version of the
// resource that is known.
func (a aggregated) unreadBeside(resource schema.GroupResource) []schema.GroupVersion {
	having := a.versions(resource)
	return slices.DeleteFunc(a.group(resource.Group), func(gv schema.GroupVersion) bool {
		return !a[gv].moved() || slices.ContainsFunc(having, func(other schema.GroupVersion) bool {
			return other == gv || a[other].leadsTo == a[gv].leadsTo
		})
	})
}

// takes returns the group versions that APIServices hand to aggregated servers although kube-apiserver stores the
// resource: those that kube-apiserver would serve, at which nobody reaches its objects, and those at which an
// aggregated server has the resource too. versions are those of kube-apiserver.
func (a aggregated) takes(resource schema.GroupResource, versions []string) []schema.GroupVersion {
	return slices.DeleteFunc(a.group(resource.Group), func(gv schema.GroupVersion) bool {
		has := len(a[gv].resources[resource].Versions) > 0
		return !a.handed(gv) || !has && !slices.Contains(versions, gv.Version)
	})
}

// problemOfTaking returns a problem if an APIService takes the resource, else nil.
func (a aggregated) problemOfTaking(resource schema.GroupResource, versions []string, remedy string) *Problem {
	taken := a.takes(resource, versions)
	if len(taken) == 0 {
		return nil
	}
	return &Problem{Reason: migrationv1alpha1.StateReasonServersUnseen, Since: a[taken[0]].handedSince,
		Message: "the APIService of " + taken[0].String() + " leads to an aggregated server, so not all objects that are " +
			"stored as " + resource.String() + " can be reached. " + remedy}
}

// observe adds what the documents say.
func (a aggregated) observe(o *Observation) {
	var versions []string
	var kind string
	var withdrawn time.Time // counts if no version has an APIService
	o.Presence = NotServed
	for _, gv := range a.versions(o.Resource) {
		known := a[gv]
		versions = append(versions, gv.Version)
		kind = cmp.Or(kind, known.resources[o.Resource].Kind)
		if known.withdrawn {
			withdrawn = earlier(withdrawn, known.readAt)
		} else {
			o.ReadAt = earlier(o.ReadAt, known.readAt)
		}
		if known.failure != "" || known.whyReplicasDiffer != "" {
			o.Problem = known.problem(gv)
		}
		if known.failure == "" && len(known.resources[o.Resource].Versions) > 0 {
			o.Presence = Served
			o.ServedVersions = append(o.ServedVersions, gv.Version)
		}
		if o.Problem == nil && known.resources[o.Resource].Hash == Unknown {
			o.Problem = &Problem{Reason: migrationv1alpha1.StateReasonServersUnseen, Since: known.handedSince, Message: "the " +
				"discovery document of " + gv.String() + " has no storage version hash of the resource any more, or one that is " +
				"too long, so nobody knows in which encoding the server writes it. Make the server publish it as before"}
		}
	}
	for _, gv := range a.unreadBeside(o.Resource) {
		o.Problem = a[gv].problem(gv)
	}
	o.ReadAt = cmp.Or(o.ReadAt, withdrawn)
	if o.Presence == NotServed { // Another version of the group may serve it.
		if o.Problem = cmp.Or(o.Problem, a.problem(o.Resource.Group)); o.Problem != nil {
			o.Presence = PresenceUnknown
		}
	}
	o.Versions = versionsByEncoding(o.Resource.Group, kind, versions)
}

// earlier returns the earlier of two times. A zero time does not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// problem returns why it is not known which resources aggregated servers serve in a group, or nil.
func (a aggregated) problem(group string) *Problem {
	for _, gv := range a.group(group) {
		if known := a[gv]; known.failure != "" {
			return known.problem(gv)
		}
	}
	return nil
}

func (v aggregatedVersion) problem(gv schema.GroupVersion) *Problem {
	if v.failure == "" {
		return &Problem{
			Reason: migrationv1alpha1.StateReasonServersUnseen, Message: v.whyReplicasDiffer, Since: v.failingSince,
		}
	}
	return &Problem{
		Reason: migrationv1alpha1.StateReasonDiscoveryFailed,
		Message: "the discovery document of " + gv.String() + " could not be read through the aggregator: " + v.failure +
			". Check the APIService and the server that it points to",
		Since: v.failingSince,
	}
}
