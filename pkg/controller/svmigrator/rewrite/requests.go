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
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	// PatchTimeout is longer than the 34 s that an API server allows for a patch. So the API server answers before.
	PatchTimeout = 40 * time.Second
	// listTimeout is longer than the 60 s that an API server allows for a list by default.
	listTimeout = 65 * time.Second
	// objectReadTimeout is for single objects.
	objectReadTimeout = 15 * time.Second
	// After blamelessTries failed tries the object itself may be the reason that no API server is reached: a server that
	// restarts answers again before that.
	blamelessTries = 3

	// The rewriter asks for metadata only, except to compare objects. An API server that cannot send metadata alone
	// refuses the request.
	acceptObject = runtime.ContentTypeProtobuf + documents.AsMetadata + "," +
		runtime.ContentTypeJSON + documents.AsMetadata
	acceptWhole = runtime.ContentTypeJSON
	acceptList  = runtime.ContentTypeProtobuf + documents.AsMetadataList + "," +
		runtime.ContentTypeJSON + documents.AsMetadataList
)

// newObjectsClient returns a client for the metadata of any resource. It has no rate limit, because the pacer limits
// the rate. It does not repeat requests by itself, so that the pacer sees everything that the server says about its
// load.
func newObjectsClient(config *rest.Config) (rest.Interface, error) {
	config = metadata.ConfigFor(config)
	config.GroupVersion = &schema.GroupVersion{}
	config.APIPath = "/"
	config.QPS = -1
	// Warnings are about the contents of objects, which only their owners can change.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the metadata of objects: %w", err)
	}
	return client, nil
}

// resourceRequest completes a request about the resource at a version with the path, the Accept header and the timeout.
func (r *rewriter) resourceRequest(request *rest.Request, version, accept string, timeout time.Duration) *rest.Request {
	at := schema.GroupVersion{Group: r.resource.Group, Version: version}
	return request.AbsPath(documents.Path(at)).Resource(r.resource.Resource).
		SetHeader("Accept", accept).MaxRetries(0).Timeout(timeout)
}

// list returns a chunk of the metadata of all objects in all namespaces, and the length of the answer. It reads no more
// than most bytes.
func (r *rewriter) list(
	ctx context.Context, token string, limit, most int64,
) (list *metav1.PartialObjectMetadataList, length int, err error) {
	request := r.resourceRequest(r.client.Get(), r.resource.Version, acceptList, listTimeout).
		Param("limit", strconv.FormatInt(limit, 10))
	if token != "" {
		request.Param("continue", token)
	}
	result := request.Do(documents.AtMost(ctx, most))
	body, _ := result.Raw() // answerOf returns the error.
	list, err = answerOf[*metav1.PartialObjectMetadataList](result)
	return list, len(body), err
}

// answerOf decodes an answer. Result.Into would take an answer of another kind, for example the Status of a proxy, for
// an empty list or for an object without metadata.
func answerOf[T runtime.Object](result rest.Result) (answer T, err error) {
	object, err := result.Get()
	if err != nil {
		return answer, err
	}
	answer, ok := object.(T)
	if !ok {
		return answer, fmt.Errorf("the answer is a %T", object)
	}
	return answer, nil
}

// objectRequest completes a request about a single object at a version.
func (r *rewriter) objectRequest(
	object *sweep.Object, request *rest.Request, version, accept string, timeout time.Duration,
) *rest.Request {
	return r.resourceRequest(request, version, accept, timeout).
		NamespaceIfScoped(object.Namespace, object.Namespace != "").Name(object.Name)
}

// getAt returns a whole object at a version.
func (r *rewriter) getAt(ctx context.Context, object *sweep.Object, version string) (*whole, error) {
	return decode(r.objectRequest(object, r.client.Get(), version, acceptWhole, objectReadTimeout).Do(ctx))
}

// patchedMetadata is what a rewrite sends. The UID and the resource version are its precondition.
type patchedMetadata struct {
	UID             types.UID                   `json:"uid"`
	ResourceVersion string                      `json:"resourceVersion"`
	ManagedFields   []metav1.ManagedFieldsEntry `json:"managedFields,omitempty"`
}

// patchRequest returns a patch. If the object is gone, the API server answers that it is not found, and creates
// nothing.
func (r *rewriter) patchRequest(object *sweep.Object, way patchWay, accept string) *rest.Request {
	fields := patchedMetadata{object.UID, object.ResourceVersion, originalOf(object).cleaned}
	body, _ := json.Marshal(map[string]any{"metadata": fields}) // Metadata can be encoded, because they were decoded.
	version := cmp.Or(way.version, r.resource.Version)
	request := r.objectRequest(object, r.client.Patch(way.patch), version, accept, PatchTimeout)
	if way.subresource != "" {
		request.SubResource(way.subresource)
	}
	return request.
		Param("fieldManager", controller.MigratorFieldManager).
		// An object may have fields that its schema does not have any more. The API server must not refuse it for that, nor
		// warn.
		Param("fieldValidation", metav1.FieldValidationIgnore).
		Body(body)
}
