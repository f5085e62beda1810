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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Process is one run of kube-apiserver, from its start to its end, as its identity Lease shows it.
type Process struct {
	// Identity survives a restart of the server. Incarnation does not, from Kubernetes 1.35 on.
	Identity, Incarnation string
}

// StorageVersion is the part of a StorageVersion object that matters here.
type StorageVersion struct {
	UID             types.UID
	ResourceVersion string
	// EncodingVersions are the encoding versions, for example apps/v1, by server identity.
	EncodingVersions map[string]string
}

// Definition is the part of a CustomResourceDefinition that matters here.
type Definition struct {
	UID            types.UID
	Generation     int64
	Group          string
	Kind           string
	StorageVersion string
	// ServedVersions has the preferred version first.
	ServedVersions []string
	// DefinedVersions has those that are not served as well.
	DefinedVersions []string
	StoredVersions  []string
	// StoredVersionsManager is the field manager that was the last to change them.
	StoredVersionsManager string
	// Established says that the API servers serve the resource.
	Established bool
	// Content differs if definitions differ in their versions, schemas, status subresources or strategy of conversion.
	// contentSince is when this manager first saw that content.
	Content      string
	contentSince time.Time
}

// Resource is what the discovery documents of a server say of a resource.
type Resource struct {
	Kind string
	// Versions are those at which the server serves it, the preferred first.
	Versions []string
	// Hash is what the server writes. It is empty if the server does not store the resource.
	Hash Encoding
	// Migratable says that clients can list the resource, and update or patch it.
	Migratable bool
}

// Document is what the discovery documents of one server say.
type Document struct {
	// Failure is why something could not be read. Everything else is empty then.
	Failure string
	// Version is the Kubernetes version of the server, empty if it did not tell it.
	Version string
	// Started is when the process started, by its own clock. It is zero if the process did not tell. Where Leases do not
	// identify processes, nothing else tells them apart.
	Started time.Time
	// Serves are the built-in group versions that the server serves, those of one group in the order of preference.
	Serves []schema.GroupVersion
	// Resources are those that the server itself serves, without custom and aggregated ones.
	Resources map[schema.GroupResource]Resource
	// Connected says that a connection to the process is kept, and that ConnectionLost reports its end. That is done where
	// the Lease may outlive its process.
	Connected bool
	// ServesStorageVersions says that the server serves the StorageVersion API. Whether it publishes what it writes
	// depends on its feature gates, which no document shows.
	ServesStorageVersions bool
}

// LivingServers are the servers that have a living identity Lease at one moment.
type LivingServers struct {
	// Living are their processes, in order.
	Living []Process
	// Advertised are the addresses at which servers say that they answer, by identity. Servers before Kubernetes 1.36 do
	// not say it. Several servers behind one address say the same.
	Advertised map[string]string
}

// Look is one reading of the discovery documents of all servers.
type Look struct {
	// LivingServers are those when the look began.
	LivingServers
	// Shared says that servers share addresses: see SharesAddresses. The documents are those of the processes that were
	// met there or, while nobody can tell processes apart (see WhyUnmet), of whoever answered at each address.
	Shared bool
	// WhyUnmet is why not all processes behind shared addresses were met, and what to do. Empty if they were. It can
	// follow "3 API servers have a living identity Lease, but".
	WhyUnmet string
	// Documents are by address. Behind shared addresses the start time of the process stands for it.
	Documents map[string]Document
}

// AggregatedDocument is what the discovery document of one group version of an aggregated server says.
type AggregatedDocument struct {
	// Address names the service that serves the group version.
	Address string
	// Failure is why the document could not be read. Resources is empty then.
	Failure string
	// WhyReplicasDiffer is why other replicas of the server may write something else, and what to do. Empty if they do
	// not.
	WhyReplicasDiffer string
	// Resources may be without a hash. Most of these are not stored.
	Resources map[schema.GroupResource]Resource
}

// Changes are the resources whose observation may have changed.
type Changes = sets.Set[schema.GroupResource]
