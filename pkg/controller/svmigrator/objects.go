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

package svmigrator

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// fieldManager would own the fields that a rewrite changes, which are none: it never appears in managedFields.
	fieldManager = "storage-version-migrator"

	// patchTimeout is more than the 34 s that an API server gives to a patch, so that it answers what became of it.
	patchTimeout = 40 * time.Second
	// listTimeout is more than the 60 s that an API server gives to a list by default.
	listTimeout = 65 * time.Second
	// readTimeout is for small documents and single objects.
	readTimeout = 15 * time.Second

	// Never the objects themselves: an API server that cannot leave the bodies out refuses the request.
	acceptObject     = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptJSONObject = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptList       = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// newObjectsClient returns a client for metadata of any resource. It has no rate limit, because the pacer has one, and it
// repeats no request by itself: what the server says about its load has to reach the pacer.
func newObjectsClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeProtobuf
	config.NegotiatedSerializer = metainternalversionscheme.Codecs.WithoutConversion()
	config.GroupVersion = &schema.GroupVersion{}
	config.APIPath = "/"
	config.QPS = -1
	// Warnings are about what the objects contain, which is their owners' matter.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of objects' metadata: %w", err)
	}
	return client, nil
}

// objects are those of one resource at one version.
type objects struct {
	client   rest.Interface
	resource schema.GroupVersionResource
}

func (o *objects) path(namespace, name string, subresources ...string) []string {
	path := []string{"apis", o.resource.Group, o.resource.Version}
	if o.resource.Group == "" {
		path = []string{"api", o.resource.Version}
	}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	path = append(path, o.resource.Resource)
	if name != "" {
		path = append(path, name)
	}
	return append(path, subresources...)
}

// list returns a chunk of the metadata of all objects in all namespaces.
func (o *objects) list(ctx context.Context, token string, limit int64) (*metav1.PartialObjectMetadataList, error) {
	request := o.client.Get().AbsPath(o.path("", "")...).SetHeader("Accept", acceptList).MaxRetries(0).Timeout(listTimeout).
		Param("limit", strconv.FormatInt(limit, 10))
	if token != "" {
		request.Param("continue", token)
	}
	list := &metav1.PartialObjectMetadataList{}
	return list, request.Do(ctx).Into(list)
}

func (o *objects) get(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	object := &metav1.PartialObjectMetadata{}
	return object, o.client.Get().AbsPath(o.path(namespace, name)...).SetHeader("Accept", acceptObject).MaxRetries(0).Timeout(readTimeout).Do(ctx).Into(object)
}

// patch sends a merge patch, which never creates an object: one that is gone is not found.
func (o *objects) patch(ctx context.Context, namespace, name string, body []byte, subresources ...string) (*metav1.PartialObjectMetadata, error) {
	object := &metav1.PartialObjectMetadata{}
	return object, o.client.Patch(types.MergePatchType).AbsPath(o.path(namespace, name, subresources...)...).
		SetHeader("Accept", acceptObject).MaxRetries(0).Timeout(patchTimeout).
		Param("fieldManager", fieldManager).
		// Fields that a schema does not know any more are no reason to refuse, nor to warn of.
		Param("fieldValidation", metav1.FieldValidationIgnore).
		Body(body).Do(ctx).Into(object)
}
