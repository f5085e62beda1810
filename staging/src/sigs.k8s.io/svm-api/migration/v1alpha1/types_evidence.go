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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StorageEvidence is what shows in which encoding a resource is written. It has enough detail to see later whether
// anything that matters may have changed. It is one proof and is applied as a whole: parts of two proofs prove nothing.
// +structType=atomic
type StorageEvidence struct {
	// source is where the evidence comes from. It determines which of the other fields are set. Later releases may add
	// sources. A client that does not know a source cannot compare the evidence with other evidence.
	// +required
	// +unionDiscriminator
	Source EvidenceSource `json:"source"`
	// firstObservedTime is when this evidence was first observed. It has not changed since.
	// +optional
	FirstObservedTime *metav1.Time `json:"firstObservedTime,omitempty"`
	// storageVersion is the StorageVersion object that was read.
	// +optional
	StorageVersion *StorageVersionEvidence `json:"storageVersion,omitempty"`
	// customResourceDefinition is the CustomResourceDefinition that was read.
	// +optional
	CustomResourceDefinition *CustomResourceDefinitionEvidence `json:"customResourceDefinition,omitempty"`
	// servers are the servers that were alive. If the source names servers, each has what it writes.
	// +optional
	// +listType=map
	// +listMapKey=identity
	// +kubebuilder:validation:MaxItems=256
	Servers []ServerEvidence `json:"servers,omitempty"`
	// endpoints are the addresses whose discovery documents were read, each with what the document shows. For resources of
	// kube-apiserver, an address that begins with /apis/ is a version that an APIService hands to an aggregated server, so
	// that kube-apiserver does not answer for it.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	Endpoints []EndpointEvidence `json:"endpoints,omitempty"`
}

// EvidenceSource is where evidence comes from. The set is open.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=64
type EvidenceSource string

const (
	// EvidenceFromStorageVersion: a StorageVersion object. Each server publishes there what it writes, before it writes.
	EvidenceFromStorageVersion EvidenceSource = "StorageVersion"
	// EvidenceFromServerDiscovery: the discovery document of each server. There are as many as identity Leases.
	EvidenceFromServerDiscovery EvidenceSource = "ServerDiscovery"
	// EvidenceFromCustomResourceDefinition: the CustomResourceDefinition. The servers follow it.
	EvidenceFromCustomResourceDefinition EvidenceSource = "CustomResourceDefinition"
	// EvidenceFromAggregatedDiscovery: the discovery document of an aggregated server, read through the aggregator.
	EvidenceFromAggregatedDiscovery EvidenceSource = "AggregatedDiscovery"
)

// StorageVersionEvidence identifies one revision of a StorageVersion object.
// +structType=atomic
type StorageVersionEvidence struct {
	// uid is the uid of the StorageVersion.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid"`
	// resourceVersion is the resource version of the StorageVersion.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ResourceVersion string `json:"resourceVersion"`
}

// CustomResourceDefinitionEvidence identifies one revision of a CustomResourceDefinition.
// +structType=atomic
type CustomResourceDefinitionEvidence struct {
	// uid is the uid of the CustomResourceDefinition.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid"`
	// generation is metadata.generation of the CustomResourceDefinition. It goes up whenever the spec changes, so also
	// whenever the storage version changes.
	// +required
	Generation int64 `json:"generation"`
	// storedVersions is status.storedVersions of the CustomResourceDefinition.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	StoredVersions []string `json:"storedVersions,omitempty"`
}

// ServerEvidence is a server that was alive.
type ServerEvidence struct {
	// identity is the identity of the server. It stays the same after a restart. It is the name of the server's identity
	// Lease and its apiServerID in StorageVersion objects.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Identity string `json:"identity"`
	// incarnation is the holder of the identity Lease. From Kubernetes 1.35 on it distinguishes one process of that
	// identity from the next. Earlier servers keep the holder over restarts. See serverVersion and processStartTime of
	// endpoints.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Incarnation string `json:"incarnation,omitempty"`
	// storageVersionHash is the hash of the encoding that the server writes. It is empty if the source does not name
	// servers, or if the server does not serve the resource.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StorageVersionHash string `json:"storageVersionHash,omitempty"`
}

// EndpointEvidence is an address whose discovery document was read.
type EndpointEvidence struct {
	// address is where the document was read. For a server of kube-apiserver it is an address and a port. If several
	// servers share it, it is the time at which the process started. For an aggregated server it is the address of its
	// Service and a path, and for a custom resource behind an APIService only the path.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	Address string `json:"address"`
	// storageVersionHash is the hash in the discovery document. It is empty if the server does not serve the resource.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StorageVersionHash string `json:"storageVersionHash,omitempty"`
	// serverVersion is the Kubernetes version of the server that answered, for example v1.34.4. It tells whether the
	// identity Lease of the server identifies the process. It is empty if the server did not tell its version.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ServerVersion string `json:"serverVersion,omitempty"`
	// processStartTime is when the process that answered started, by its own clock. It distinguishes one process at this
	// address from the next where identity Leases do not: before Kubernetes 1.35, and where servers share the address.
	// It is not set elsewhere, or if the process did not tell it.
	// +optional
	ProcessStartTime *metav1.MicroTime `json:"processStartTime,omitempty"`
}
