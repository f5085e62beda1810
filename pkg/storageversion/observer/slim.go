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

package observer

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// CustomResourceDefinitions are large, mostly for their schemas, and there may be thousands. The types here have only
// the fields that matter, so that a decoder skips the rest and never allocates it.

var (
	definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	apiServiceKind = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}

	slimScheme = newSlimScheme()
)

func newSlimScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypeWithName(definitionKind, &definition{})
	s.AddKnownTypeWithName(definitionKind.GroupVersion().WithKind("CustomResourceDefinitionList"), &definitionList{})
	s.AddKnownTypeWithName(apiServiceKind, &apiService{})
	s.AddKnownTypeWithName(apiServiceKind.GroupVersion().WithKind("APIServiceList"), &apiServiceList{})
	metav1.AddToGroupVersion(s, definitionKind.GroupVersion())
	metav1.AddToGroupVersion(s, apiServiceKind.GroupVersion())
	return s
}

// slimMeta is the part of an object's metadata that a watch cannot do without, or that matters.
type slimMeta struct {
	Name            string            `json:"name"`
	UID             types.UID         `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Generation      int64             `json:"generation"`
	Labels          map[string]string `json:"labels"`
	Annotations     slimAnnotations   `json:"annotations"`
}

// slimAnnotations has what an API server puts at the end of a streamed list, and none of the large ones of users.
type slimAnnotations struct {
	InitialEventsEnd string `json:"k8s.io/initial-events-end"`
}

func (m *slimMeta) object() metav1.Object {
	out := &metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation, Labels: m.Labels}
	if end := m.Annotations.InitialEventsEnd; end != "" {
		out.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: end}
	}
	return out
}

func (m *slimMeta) deepCopy() slimMeta {
	out := *m
	out.Labels = maps.Clone(m.Labels)
	return out
}

type slimCondition struct {
	Type               string                 `json:"type"`
	Status             metav1.ConditionStatus `json:"status"`
	LastTransitionTime string                 `json:"lastTransitionTime"`
}

// definition is what matters of a CustomResourceDefinition.
type definition struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        slimMeta         `json:"metadata"`
	Spec            definitionSpec   `json:"spec"`
	Status          definitionStatus `json:"status"`
}

type definitionSpec struct {
	Group    string              `json:"group"`
	Names    definitionNames     `json:"names"`
	Versions []definitionVersion `json:"versions"`
}

type definitionNames struct {
	Plural string `json:"plural"`
	Kind   string `json:"kind"`
}

type definitionVersion struct {
	Name    string `json:"name"`
	Served  bool   `json:"served"`
	Storage bool   `json:"storage"`
}

type definitionStatus struct {
	StoredVersions []string        `json:"storedVersions"`
	Conditions     []slimCondition `json:"conditions"`
}

// GetObjectMeta is how a watch reads the metadata.
func (d *definition) GetObjectMeta() metav1.Object { return d.Metadata.object() }

// DeepCopyObject makes it a runtime.Object.
func (d *definition) DeepCopyObject() runtime.Object {
	out := *d
	out.Metadata = d.Metadata.deepCopy()
	out.Spec.Versions = slices.Clone(d.Spec.Versions)
	out.Status.StoredVersions = slices.Clone(d.Status.StoredVersions)
	out.Status.Conditions = slices.Clone(d.Status.Conditions)
	return &out
}

type definitionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []definition `json:"items"`
}

// DeepCopyObject makes it a runtime.Object.
func (l *definitionList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*definition))
	}
	return &out
}

func (d *definition) resource() schema.GroupResource {
	return schema.GroupResource{Group: d.Spec.Group, Resource: d.Spec.Names.Plural}
}

// customResource is what the ledger is told of it.
func (d *definition) customResource() *storageversion.CustomResource {
	out := &storageversion.CustomResource{
		UID:            d.Metadata.UID,
		Generation:     d.Metadata.Generation,
		Group:          d.Spec.Group,
		Plural:         d.Spec.Names.Plural,
		Kind:           d.Spec.Names.Kind,
		StoredVersions: slices.Clone(d.Status.StoredVersions),
	}
	for _, v := range d.Spec.Versions {
		if v.Storage {
			out.StorageVersion = v.Name
		}
		if v.Served {
			out.ServedVersions = append(out.ServedVersions, v.Name)
		}
	}
	// The order in which API servers prefer them in discovery.
	slices.SortFunc(out.ServedVersions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	for _, c := range d.Status.Conditions {
		if c.Type == "Established" {
			out.Established = c.Status == metav1.ConditionTrue
		}
	}
	return out
}

// origin is where a group version comes from.
type origin string

const (
	// builtIn is the zero value: a group version without an APIService is one of kube-apiserver as well.
	builtIn    origin = ""
	custom     origin = "custom"
	aggregated origin = "aggregated"

	// automanagedLabel is on APIServices that kube-apiserver makes. Those it makes for CustomResourceDefinitions it has to keep
	// in step with them, and marks so; those of its own it makes once, at its start.
	automanagedLabel    = "kube-aggregator.kubernetes.io/automanaged"
	managedContinuously = "true"

	defaultServicePort = 443
)

// apiService is what matters of an APIService.
type apiService struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        slimMeta         `json:"metadata"`
	Spec            apiServiceSpec   `json:"spec"`
	Status          apiServiceStatus `json:"status"`
}

type apiServiceSpec struct {
	Group   string            `json:"group"`
	Version string            `json:"version"`
	Service *serviceReference `json:"service"`
}

type serviceReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      *int32 `json:"port"`
}

type apiServiceStatus struct {
	Conditions []slimCondition `json:"conditions"`
}

// GetObjectMeta is how a watch reads the metadata.
func (s *apiService) GetObjectMeta() metav1.Object { return s.Metadata.object() }

// DeepCopyObject makes it a runtime.Object.
func (s *apiService) DeepCopyObject() runtime.Object {
	out := *s
	out.Metadata = s.Metadata.deepCopy()
	if s.Spec.Service != nil {
		service := *s.Spec.Service
		if service.Port != nil {
			port := *service.Port
			service.Port = &port
		}
		out.Spec.Service = &service
	}
	out.Status.Conditions = slices.Clone(s.Status.Conditions)
	return &out
}

type apiServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []apiService `json:"items"`
}

// DeepCopyObject makes it a runtime.Object.
func (l *apiServiceList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*apiService))
	}
	return &out
}

func (s *apiService) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

func (s *apiService) origin() origin {
	switch {
	case s.Spec.Service != nil:
		return aggregated
	case s.Metadata.Labels[automanagedLabel] == managedContinuously:
		return custom
	default:
		return builtIn
	}
}

// address is where the aggregator finds the server; empty if the group version is not aggregated.
func (s *apiService) address() string {
	service := s.Spec.Service
	if service == nil {
		return ""
	}
	port := defaultServicePort
	if service.Port != nil {
		port = int(*service.Port)
	}
	return net.JoinHostPort(fmt.Sprintf("%s.%s.svc", service.Name, service.Namespace), strconv.Itoa(port))
}

// availability changes when the aggregator lost or found the server, which may be another process then.
func (s *apiService) availability() string {
	for _, c := range s.Status.Conditions {
		if c.Type == "Available" {
			return string(c.Status) + " " + c.LastTransitionTime
		}
	}
	return ""
}
