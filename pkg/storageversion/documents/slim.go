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
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// CustomResourceDefinitions are large, mostly because of their schemas, and there may be thousands. A decoder skips
// the fields that the types of this package do not have, and never allocates them.

const (
	definitionKind = "CustomResourceDefinition"

	// DefinitionsPath is where an API server serves CustomResourceDefinitions.
	DefinitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// Group versions of the slim types.
var (
	DefinitionsV1 = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
	APIServicesV1 = schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}

	codecs = newCodecs()
)

func newCodecs() serializer.CodecFactory {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	s.AddKnownTypeWithName(DefinitionsV1.WithKind(definitionKind), &Definition{})
	s.AddKnownTypeWithName(DefinitionsV1.WithKind(definitionKind+"List"), &list[Definition]{})
	s.AddKnownTypeWithName(APIServicesV1.WithKind("APIService"), &APIService{})
	s.AddKnownTypeWithName(APIServicesV1.WithKind("APIServiceList"), &list[APIService]{})
	metav1.AddToGroupVersion(s, DefinitionsV1)
	metav1.AddToGroupVersion(s, APIServicesV1)
	return serializer.NewCodecFactory(s)
}

// NewClient returns a client that lists and watches Definitions, APIServices and the types of client-go. Its requests
// have to name whole paths.
func NewClient(config *rest.Config, client *http.Client) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeJSON
	config.NegotiatedSerializer = codecs.WithoutConversion()
	return rest.UnversionedRESTClientForConfigAndClient(config, client)
}

// objectMeta is metadata without its large fields: annotations and managedFields hide those of metav1.ObjectMeta, which
// a decoder leaves empty.
type objectMeta struct {
	metav1.ObjectMeta
	Annotations   annotations     `json:"annotations"`
	ManagedFields []managedFields `json:"managedFields"`
}

// annotations has the one that an API server sets at the end of a streamed list. Those of users may be large.
type annotations struct {
	InitialEventsEnd string `json:"k8s.io/initial-events-end"`
}

// managedFields says who was the last to write some fields. Of the fields, only status.storedVersions matters.
type managedFields struct {
	Manager  string `json:"manager"`
	FieldsV1 struct {
		Status struct {
			StoredVersions *struct{} `json:"f:storedVersions"`
		} `json:"f:status"`
	} `json:"fieldsV1"`
}

func (m *objectMeta) object() metav1.Object {
	out := m.ObjectMeta
	if end := m.Annotations.InitialEventsEnd; end != "" {
		out.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: end}
	}
	return &out
}

// list is a list of T.
type list[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []T `json:"items"`
}

// DeepCopyObject makes it a runtime.Object.
func (l *list[T]) DeepCopyObject() runtime.Object { return shallowCopy(l) }

// shallowCopy makes T a runtime.Object. Nobody changes what was decoded, so copies may share it.
func shallowCopy[T any](in *T) *T {
	out := *in
	return &out
}
