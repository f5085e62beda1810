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

// StorageEvidence is what the encoding of a resource was concluded from, in enough detail to tell later whether anything
// that matters may have happened in between. It is one proof, and applied as one: parts of two prove nothing.
// +structType=atomic
type StorageEvidence struct {
	// source is where the evidence comes from. It decides which of the other fields are set.
	// +required
	Source EvidenceSource `json:"source"`
	// firstObservedTime is when this evidence was seen first. It stood unchanged since.
	// +optional
	FirstObservedTime *metav1.Time `json:"firstObservedTime,omitempty"`
	// storageVersion is the StorageVersion object that was read.
	// +optional
	StorageVersion *StorageVersionEvidence `json:"storageVersion,omitempty"`
	// customResourceDefinition is the CustomResourceDefinition that was read.
	// +optional
	CustomResourceDefinition *CustomResourceDefinitionEvidence `json:"customResourceDefinition,omitempty"`
	// servers are the server processes that were alive, each with what it writes where it tells that by its name.
	// +optional
	// +listType=map
	// +listMapKey=identity
	// +kubebuilder:validation:MaxItems=256
	Servers []ServerEvidence `json:"servers,omitempty"`
	// endpoints are the addresses whose discovery documents were read, each with what its document says.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	Endpoints []EndpointEvidence `json:"endpoints,omitempty"`
}

// EvidenceSource is where evidence comes from.
// +kubebuilder:validation:Enum=StorageVersion;ServerDiscovery;CustomResourceDefinition;AggregatedDiscovery
type EvidenceSource string

const (
	// EvidenceFromStorageVersion: a StorageVersion object, in which every server says what it writes before it writes.
	EvidenceFromStorageVersion EvidenceSource = "StorageVersion"
	// EvidenceFromServerDiscovery: the discovery documents of every single server, counted against their identity Leases.
	EvidenceFromServerDiscovery EvidenceSource = "ServerDiscovery"
	// EvidenceFromCustomResourceDefinition: the CustomResourceDefinition, which the servers follow.
	EvidenceFromCustomResourceDefinition EvidenceSource = "CustomResourceDefinition"
	// EvidenceFromAggregatedDiscovery: the discovery document of an aggregated server, read through the aggregator.
	EvidenceFromAggregatedDiscovery EvidenceSource = "AggregatedDiscovery"
)

// StorageVersionEvidence identifies a state of a StorageVersion object.
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

// CustomResourceDefinitionEvidence identifies a state of a CustomResourceDefinition.
// +structType=atomic
type CustomResourceDefinitionEvidence struct {
	// uid is the uid of the CustomResourceDefinition.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid"`
	// generation is metadata.generation of the CustomResourceDefinition. It goes up whenever its spec changes, and with
	// that whenever the storage version does.
	// +required
	Generation int64 `json:"generation"`
	// storedVersions is status.storedVersions of the CustomResourceDefinition.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	StoredVersions []string `json:"storedVersions,omitempty"`
}

// ServerEvidence is a server process that was alive.
type ServerEvidence struct {
	// identity is the identity of the server, which survives a restart: the name of its identity Lease, and its
	// apiServerID in StorageVersion objects.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Identity string `json:"identity"`
	// incarnation tells one process of that identity from the next: the holder of its identity Lease.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Incarnation string `json:"incarnation,omitempty"`
	// storageVersionHash is the hash of the encoding that the server writes. It is left out where the source does not tell
	// it by identity, and where the server does not serve the resource.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StorageVersionHash string `json:"storageVersionHash,omitempty"`
}

// EndpointEvidence is an address whose discovery document was read.
type EndpointEvidence struct {
	// address is the address and port that was asked.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=300
	Address string `json:"address"`
	// storageVersionHash is the hash that the discovery document shows. It is left out if the server does not serve the
	// resource.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	StorageVersionHash string `json:"storageVersionHash,omitempty"`
}
