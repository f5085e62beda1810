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

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Control ends and starts the processes of a cluster, for disruptive specs. Its methods return when what they do is
// done.
type Control interface {
	// Servers are the names of the API servers.
	Servers(ctx context.Context) ([]string, error)
	// RestartServer ends an API server and starts it again as another release, for example 1.36, or as its own if release
	// is empty.
	RestartServer(ctx context.Context, name, release string) error
	// KillServer ends an API server at once. RestartServer starts it again.
	KillServer(ctx context.Context, name string) error
	// KillImplementation ends all processes of the implementation at once, and StartImplementation starts them again.
	KillImplementation(ctx context.Context) error
	StartImplementation(ctx context.Context) error
}

// Paths of the control socket.
const (
	pathServers = "/servers"
	pathRestart = "/servers/restart"
	pathKill    = "/servers/kill"
	pathEnd     = "/implementation/kill"
	pathStart   = "/implementation/start"

	paramName    = "name"
	paramRelease = "release"
)

// ServeControl answers requests of remote controls with a Control.
func ServeControl(control Control) http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, do func(r *http.Request) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := do(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
	}
	mux.HandleFunc("GET "+pathServers, func(w http.ResponseWriter, r *http.Request) {
		names, err := control.Servers(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(names) // The client may be gone.
	})
	handle(pathRestart, func(r *http.Request) error {
		return control.RestartServer(r.Context(), r.FormValue(paramName), r.FormValue(paramRelease))
	})
	handle(pathKill, func(r *http.Request) error { return control.KillServer(r.Context(), r.FormValue(paramName)) })
	handle(pathEnd, func(r *http.Request) error { return control.KillImplementation(r.Context()) })
	handle(pathStart, func(r *http.Request) error { return control.StartImplementation(r.Context()) })
	return mux
}

// remoteControl is a Control behind a socket.
type remoteControl struct{ client *http.Client }

// NewRemoteControl is the Control that listens at a Unix socket.
func NewRemoteControl(socket string) Control {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &remoteControl{client: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (r *remoteControl) Servers(ctx context.Context) ([]string, error) {
	var names []string
	err := r.send(ctx, http.MethodGet, pathServers, nil, &names)
	return names, err
}

func (r *remoteControl) RestartServer(ctx context.Context, name, release string) error {
	return r.send(ctx, http.MethodPost, pathRestart, url.Values{paramName: {name}, paramRelease: {release}}, nil)
}

func (r *remoteControl) KillServer(ctx context.Context, name string) error {
	return r.send(ctx, http.MethodPost, pathKill, url.Values{paramName: {name}}, nil)
}

func (r *remoteControl) KillImplementation(ctx context.Context) error {
	return r.send(ctx, http.MethodPost, pathEnd, nil, nil)
}

func (r *remoteControl) StartImplementation(ctx context.Context) error {
	return r.send(ctx, http.MethodPost, pathStart, nil, nil)
}

func (r *remoteControl) send(ctx context.Context, method, path string, values url.Values, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://control"+path, strings.NewReader(values.Encode()))
	if err != nil {
		return fmt.Errorf("making a request for the control: %w", err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("asking the control for %s: %w", path, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body) // The status says enough if there are no words.
		return fmt.Errorf("the control answers %s to %s: %s", response.Status, path, text)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
