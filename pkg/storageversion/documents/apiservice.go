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

package documents

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// AutomanagedLabel is on the APIServices that kube-apiserver makes. The value is "true" if they follow
	// CustomResourceDefinitions. Those of kube-apiserver itself are made once, at its start, and have another value.
	AutomanagedLabel = "kube-aggregator.kubernetes.io/automanaged"

	defaultServicePort = 443
)

// APIService has the few fields of an APIService that matter.
type APIService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        objectMeta `json:"metadata"`
	Spec            struct {
		Group   string `json:"group"`
		Version string `json:"version"`
		// Service is in front of an aggregated server.
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      *int   `json:"port"`
		} `json:"service"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// GetObjectMeta lets a Reflector read the metadata.
func (s *APIService) GetObjectMeta() metav1.Object { return s.Metadata.object() }

// DeepCopyObject makes it a runtime.Object.
func (s *APIService) DeepCopyObject() runtime.Object { return shallowCopy(s) }

// GroupVersion is what the APIService is about.
func (s *APIService) GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

// BuiltIn reports whether kube-apiserver itself serves the group version.
func (s *APIService) BuiltIn() bool {
	return s.Spec.Service == nil && s.Metadata.Labels[AutomanagedLabel] != "true"
}

// Address is where the aggregator finds the server. It is empty if the group version is not aggregated.
func (s *APIService) Address() string {
	service := s.Spec.Service
	if service == nil {
		return ""
	}
	port := defaultServicePort
	if service.Port != nil {
		port = *service.Port
	}
	return net.JoinHostPort(fmt.Sprintf("%s.%s.svc", service.Name, service.Namespace), strconv.Itoa(port))
}

// ServiceName is the name of the Service in front of an aggregated server.
func (s *APIService) ServiceName() (name types.NamespacedName) {
	if service := s.Spec.Service; service != nil {
		name.Namespace, name.Name = service.Namespace, service.Name
	}
	return name
}

// Availability changes when the aggregator loses or finds the server, which may then be another process.
func (s *APIService) Availability() string {
	c := meta.FindStatusCondition(s.Status.Conditions, "Available")
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.LastTransitionTime.UTC().Format(time.RFC3339)
}
