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

package rewrite

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

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

const (
	// FieldManager would own the fields that a rewrite changes. A rewrite changes none, so it gets no entry.
	FieldManager = "storage-version-migrator"

	// patchTimeout is more than the 34 s that an API server allows for a patch. So the answer says what became of it.
	patchTimeout = 40 * time.Second
	// listTimeout is more than the 60 s that an API server allows for a list by default.
	listTimeout = 65 * time.Second
	// readTimeout is for single objects.
	readTimeout = 15 * time.Second

	// The rewriter never asks for bodies: an API server that cannot leave them out refuses the request.
	asObject     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asList       = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	acceptObject = runtime.ContentTypeProtobuf + asObject + "," + runtime.ContentTypeJSON + asObject
	acceptList   = runtime.ContentTypeProtobuf + asList + "," + runtime.ContentTypeJSON + asList
)

// newObjectsClient returns a client for the metadata of any resource. It has no rate limit, because the pacer has one. It
// repeats no request by itself, so that the pacer sees everything that the server says about its load.
func newObjectsClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeProtobuf
	config.NegotiatedSerializer = metainternalversionscheme.Codecs.WithoutConversion()
	config.GroupVersion = &schema.GroupVersion{}
	config.APIPath = "/"
	config.QPS = -1
	// Warnings are about the contents of objects, which are the business of their owners.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the metadata of objects: %w", err)
	}
	return client, nil
}

// objects sends requests about the objects of one resource at one version.
type objects struct {
	client   rest.Interface
	resource schema.GroupVersionResource
}

// prepare addresses a request.
func (o *objects) prepare(request *rest.Request, accept string, timeout time.Duration) *rest.Request {
	root := "/apis/" + o.resource.GroupVersion().String()
	if o.resource.Group == "" {
		root = "/api/" + o.resource.Version
	}
	return request.AbsPath(root).Resource(o.resource.Resource).SetHeader("Accept", accept).MaxRetries(0).Timeout(timeout)
}

// list returns a chunk of the metadata of all objects in all namespaces.
func (o *objects) list(ctx context.Context, token string, limit int64) (*metav1.PartialObjectMetadataList, error) {
	request := o.prepare(o.client.Get(), acceptList, listTimeout).Param("limit", strconv.FormatInt(limit, 10))
	if token != "" {
		request.Param("continue", token)
	}
	list := &metav1.PartialObjectMetadataList{}
	return list, request.Do(ctx).Into(list)
}

func (o *objects) get(ctx context.Context, object *sweep.Object) (*metav1.PartialObjectMetadata, error) {
	live := &metav1.PartialObjectMetadata{}
	return live, o.prepare(o.client.Get(), acceptObject, readTimeout).
		NamespaceIfScoped(object.Namespace, object.Namespace != "").Name(object.Name).Do(ctx).Into(live)
}

// patch sends a merge patch. A merge patch never creates an object: the answer for one that is gone is not found.
func (o *objects) patch(
	ctx context.Context, object *sweep.Object, body []byte, subresource ...string,
) (*metav1.PartialObjectMetadata, error) {
	written := &metav1.PartialObjectMetadata{}
	return written, o.prepare(o.client.Patch(types.MergePatchType), acceptObject, patchTimeout).
		NamespaceIfScoped(object.Namespace, object.Namespace != "").Name(object.Name).SubResource(subresource...).
		Param("fieldManager", FieldManager).
		// An object may have fields that its schema does not know any more. That is no reason to refuse, nor to warn.
		Param("fieldValidation", metav1.FieldValidationIgnore).
		Body(body).Do(ctx).Into(written)
}
