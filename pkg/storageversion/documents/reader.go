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
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// nameTag is how the name of a metric family begins.
var nameTag = byte(protowire.EncodeTag(1, protowire.BytesType))

// AsMetadata and AsMetadataList, behind a content type in an Accept header, ask for the metadata of objects alone.
const (
	AsMetadata     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	AsMetadataList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// maxBytes bounds a document. All instances of the manager read those of aggregated servers.
const maxBytes = 32 << 20

// maxCommas bounds the entries of a document about resources. An entry has some fifteen commas. An empty one has one,
// and takes a hundred times as much memory as bytes.
const maxCommas = 100_000

// Reader reads documents from one address.
type Reader struct {
	Client rest.Interface
	// Timeout bounds each request.
	Timeout time.Duration
	// Retries is how often a request is sent again if the server asks for that.
	Retries int
}

// get returns the document at a path. Every error names the path.
func (r Reader) get(ctx context.Context, path string, query map[string]string, accept string) (body []byte, err error) {
	request := r.Client.Get().AbsPath(path).SetHeader("Accept", accept).Timeout(r.Timeout).MaxRetries(r.Retries)
	for name, value := range query {
		request.Param(name, value)
	}
	result := request.Do(AtMost(ctx, maxBytes))
	// The error of Raw does not have the words of the API server, the one of Error has.
	if err = result.Error(); err == nil {
		body, err = result.Raw()
	}
	if err != nil {
		return nil, fmt.Errorf("getting %s: %w", path, err)
	}
	return body, nil
}

// Decode gets the document at a path, with the parameters of the query, and decodes it. It returns an error if the
// document is of another kind.
func (r Reader) Decode(
	ctx context.Context, path string, query map[string]string, accept, kind string,
	into interface{ GetObjectKind() schema.ObjectKind },
) error {
	body, err := r.get(ctx, path, query, accept)
	if err != nil {
		return err
	}
	return decodeBody(body, path, kind, into)
}

func decodeBody(body []byte, path, kind string, into interface{ GetObjectKind() schema.ObjectKind }) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decoding %s: %w", path, err)
	}
	if got := into.GetObjectKind().GroupVersionKind().Kind; got != kind {
		return fmt.Errorf("getting %s: the server answered with kind %q instead of %q", path, got, kind)
	}
	return nil
}

// ServerVersion returns the Kubernetes version of the server.
func (r Reader) ServerVersion(ctx context.Context) (string, error) {
	body, err := r.get(ctx, "/version", nil, runtime.ContentTypeJSON)
	if err != nil {
		return "", err
	}
	document := struct{ GitVersion string }{}
	if err := json.Unmarshal(body, &document); err != nil {
		return "", fmt.Errorf("decoding /version: %w", err)
	}
	return document.GitVersion, nil
}

// Families returns the metric families with these names that the server has. If the answer is not metrics, the error is
// proto.Error. An answer that was cut off, or that is only a few bytes long, gives another error.
func (r Reader) Families(ctx context.Context, names ...string) (map[string]*dto.MetricFamily, error) {
	const accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	// API servers before 1.37 do not know the parameter, and send everything in alphabetical order.
	request := r.Client.Get().AbsPath("/metrics").SetHeader("Accept", accept).MaxRetries(r.Retries)
	for _, name := range names {
		request.Param("name[]", name)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("getting /metrics: %w", err)
	}
	defer func() { _ = body.Close() }()
	reader, families, last := bufio.NewReader(body), map[string]*dto.MetricFamily{}, slices.Max(names)
	for {
		family, err := readFamily(reader, names)
		switch {
		case errors.Is(err, io.EOF):
			return families, nil
		case err != nil:
			return nil, fmt.Errorf("getting /metrics: %w", err)
		case slices.Contains(names, family.GetName()):
			families[family.GetName()] = family
		}
		if family.GetName() >= last {
			return families, nil
		}
	}
}

// readFamily reads the next metric family. It skips all but the name of a family that has none of the names: decoded, a
// histogram of a busy server takes megabytes. The error is io.EOF if there is no next one.
func readFamily(reader *bufio.Reader, names []string) (*dto.MetricFamily, error) {
	head, _ := reader.Peek(1024) // The name is the first field, and shorter.
	size, n := protowire.ConsumeVarint(head)
	if field := head[max(0, n):]; n > 0 && len(field) > 0 && field[0] == nameTag {
		if name, _ := protowire.ConsumeString(field[1:]); name != "" && !slices.Contains(names, name) {
			_, err := reader.Discard(n + int(size))
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return &dto.MetricFamily{Name: &name}, err
		}
	}
	family := &dto.MetricFamily{}
	return family, protodelim.UnmarshalOptions{MaxSize: -1}.UnmarshalFrom(reader, family)
}

// Versions returns the versions at which a group is served, the preferred one first.
func (r Reader) Versions(ctx context.Context, group string) ([]string, error) {
	if group == "" {
		return []string{"v1"}, nil // The core group has no document of this kind.
	}
	document := &metav1.APIGroup{}
	if err := r.decodeJSON(ctx, "/apis/"+group, "APIGroup", document); err != nil {
		return nil, err
	}
	var versions []string
	if preferred := document.PreferredVersion.Version; preferred != "" {
		versions = append(versions, preferred)
	}
	for _, v := range document.Versions {
		if v.Version != document.PreferredVersion.Version {
			versions = append(versions, v.Version)
		}
	}
	return versions, nil
}

// Resources returns the document of one group version.
func (r Reader) Resources(ctx context.Context, gv schema.GroupVersion) (*metav1.APIResourceList, error) {
	path := Path(gv)
	body, err := r.get(ctx, path, nil, runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	if bytes.Count(body, []byte(",")) > maxCommas {
		return nil, fmt.Errorf("decoding %s: %w", path, ErrTooLong)
	}
	document := &metav1.APIResourceList{}
	return document, decodeBody(body, path, "APIResourceList", document)
}

// ServedResource is what the document of one version says about a resource.
type ServedResource struct {
	metav1.APIResource
	// StatusVerbs are the verbs of its status subresource.
	StatusVerbs []string
}

// ServedAt returns a resource at one version. It is nil if the server does not serve the resource at that version.
func (r Reader) ServedAt(ctx context.Context, at schema.GroupVersionResource) (served *ServedResource, err error) {
	document, err := r.Resources(ctx, at.GroupVersion())
	if err != nil {
		if IsNotServed(err) {
			return nil, nil
		}
		return nil, err
	}
	var statusVerbs []string
	for _, resource := range document.APIResources {
		switch resource.Name {
		case at.Resource:
			served = &ServedResource{APIResource: resource}
		case at.Resource + "/status":
			statusVerbs = resource.Verbs
		}
	}
	if served != nil {
		served.StatusVerbs = statusVerbs
	}
	return served, nil
}

// Path is where an API server serves a group version.
func Path(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// Definition returns the CustomResourceDefinition of a resource.
func (r Reader) Definition(ctx context.Context, resource schema.GroupResource) (*Definition, error) {
	d := &Definition{}
	return d, r.decodeJSON(ctx, DefinitionPath(resource), definitionKind, d)
}

// HeardDefinition returns the metadata of the definition of a resource as the server has heard of it last: its watch
// cache answers, from which its handlers are made as well. While that is not ready, etcd answers.
func (r Reader) HeardDefinition(
	ctx context.Context, resource schema.GroupResource,
) (*metav1.PartialObjectMetadata, error) {
	heard, query := &metav1.PartialObjectMetadata{}, map[string]string{"resourceVersion": "0"}
	return heard, r.Decode(ctx, DefinitionPath(resource), query, runtime.ContentTypeJSON+AsMetadata,
		"PartialObjectMetadata", heard)
}

// DefinitionPath is where an API server serves the definition of a resource.
func DefinitionPath(resource schema.GroupResource) string {
	return DefinitionsPath + "/" + resource.String()
}

// decodeJSON asks for plain JSON. Otherwise the API server answers with aggregated discovery, which has no hashes.
func (r Reader) decodeJSON(ctx context.Context, path, kind string, into runtime.Object) error {
	return r.Decode(ctx, path, nil, runtime.ContentTypeJSON, kind, into)
}

// IsNotServed reports whether err is the answer of an API server that it does not serve what it was asked for. A proxy
// between here and the API server may answer 404 as well, and then nobody knows.
func IsNotServed(err error) bool {
	if !apierrors.IsNotFound(err) {
		return false
	}
	// An API server answers either in the words of its API, or with the page of the Go library.
	return !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) || IsPageNotFound(err)
}

// IsPageNotFound reports whether err is the page that an API server sends for a path that it does not serve. That is
// plain text, not a Status object.
func IsPageNotFound(err error) bool {
	page, found := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return found && strings.TrimSpace(page.Message) == "404 page not found"
}
