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

package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

// requestTimeout is longer than that of the servers, so that most unknown outcomes come from faults.
const requestTimeout = 7 * time.Second

// client sends each request once. The clients of client-go send some again, and one answer would stand for two writes.
type client struct {
	server string
	url    string
	http   *http.Client
}

func newClient(server string, config *rest.Config) (*client, error) {
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", server, err)
	}
	h.Timeout = requestTimeout
	return &client{server: server, url: config.Host, http: h}, nil
}

// send sends a write, and returns what is known of it.
func (c *client) send(ctx context.Context, resource model.Resource, r model.Request) model.Request {
	var body any
	path := resource.Path(r.Version, r.Name)
	kind := "application/json"
	switch r.Verb {
	case http.MethodPost:
		path, body = resource.Path(r.Version, ""), resource.Object(r.Version, r.Name, r.Write)
	case http.MethodPatch:
		body, kind = resource.Change(r.Version, r.Write), "application/merge-patch+json"
	}
	r.Server, r.Start = c.server, time.Now()
	code, answer, err := c.do(ctx, r.Verb, path, kind, body)
	r.End, r.Code = time.Now(), code
	switch {
	case err == nil && code >= http.StatusOK && code < http.StatusMultipleChoices:
		r.Outcome = model.Done
		if r.Verb != http.MethodDelete {
			r.Revision = resourceVersion(answer)
		}
	case err == nil && code >= http.StatusBadRequest && code < http.StatusInternalServerError:
		r.Outcome = model.Refused
	default:
		r.Outcome = model.Unknown
	}
	return r
}

func (c *client) do(ctx context.Context, verb, path, kind string, body any) (int, []byte, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, nil, fmt.Errorf("writing a body: %w", err)
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, verb, c.url+path, sent)
	if err != nil {
		return 0, nil, fmt.Errorf("making a request: %w", err)
	}
	// Without it the library sends a body anew on another connection only if the first one never took it.
	request.GetBody = nil
	request.Header.Set("Content-Type", kind)
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func resourceVersion(answer []byte) int64 {
	var object struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(answer, &object); err != nil {
		return 0
	}
	revision, err := strconv.ParseInt(object.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return revision
}
