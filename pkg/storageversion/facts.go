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
)

// Server is a process of kube-apiserver that lives, as its identity Lease shows it.
type Server struct {
	// Identity survives a restart, Incarnation does not.
	Identity, Incarnation string
}

// StorageVersion is what matters of a StorageVersion object.
type StorageVersion struct {
	UID             types.UID
	ResourceVersion string
	// Encodings are the encoding versions by server identity.
	Encodings map[string]string
}

// CustomResource is what matters of a CustomResourceDefinition.
type CustomResource struct {
	UID            types.UID
	Generation     int64
	Group          string
	Plural         string
	Kind           string
	StorageVersion string
	// ServedVersions has the preferred one first.
	ServedVersions []string
	StoredVersions []string
	// Established says that the API servers serve the resource.
	Established bool
}

// Resource is what a server's discovery documents say of a resource.
type Resource struct {
	Kind string
	// Versions are those at which it is served, the preferred first.
	Versions []string
	// Hash is the hash of the encoding it is written in. It is empty where the resource is not stored.
	Hash string
	// Migratable says that it can be listed, and updated or patched.
	Migratable bool
}

// Document is what one server says by its discovery documents.
type Document struct {
	// Failure is why nothing could be read. Everything else is empty then.
	Failure string
	// Resources are those that the server itself serves, without custom and aggregated ones.
	Resources map[schema.GroupResource]Resource
	// FailedGroups are the groups of which something could not be read, with the reason. What Resources says of them is
	// not complete.
	FailedGroups map[string]string
	// ServesStorageVersions says that the server takes part in the StorageVersion API.
	ServesStorageVersions bool
}

// Look is one look at the documents of all servers.
type Look struct {
	// Servers lived when the look began.
	Servers []Server
	// Direct says that Documents are from the servers' own addresses. Otherwise the one document is from whichever server
	// answered behind the address that this program was given.
	Direct bool
	// Documents are by address.
	Documents map[string]Document
}

// AggregatedDocument is what the discovery document of one group version of an aggregated server says.
type AggregatedDocument struct {
	// Address names the service behind it.
	Address string
	// Failure is why it could not be read.
	Failure   string
	Resources map[schema.GroupResource]Resource
}

// Changes are the resources that an observation may have changed of.
type Changes map[schema.GroupResource]struct{}

// Options of a Ledger.
type Options struct {
	// Linger is how long the address of a server may be answered after its Lease went.
	Linger time.Duration
}
