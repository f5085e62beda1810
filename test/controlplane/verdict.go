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

package controlplane

import (
	"context"
	"io"
	"maps"
	"net/http"
	"time"
)

// Cut says where in its course a request is cut off.
type Cut int

const (
	// CutNever lets the request through.
	CutNever Cut = iota
	// CutBefore cuts it before it reaches a server: nothing was done.
	CutBefore
	// CutAfter cuts it when the server has answered: what was asked for is done, and the client does not know.
	CutAfter
)

// Verdict is what an Interceptor does with one request. The zero value passes it on as it is.
type Verdict struct {
	// Delay passes before anything else happens to the request.
	Delay time.Duration
	// Status, if not zero, is answered in the server's place, with Header and Body. The request does not reach the server.
	Status int
	Header http.Header
	// Body is the status's name if empty.
	Body string
	// Cut ends the request without an answer.
	Cut Cut
	// Connection lets Cut reset the client's whole connection, with every other request and watch that shares it.
	// Otherwise they live on.
	Connection bool
}

// TooManyRequests is the answer of a server that is overloaded.
func TooManyRequests(retryAfter string) Verdict {
	return Verdict{
		Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {retryAfter}},
		Body: "Too many requests, please try again later.",
	}
}

func (v Verdict) answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	maps.Copy(w.Header(), v.Header)
	w.WriteHeader(v.Status)
	body := v.Body
	if body == "" {
		body = http.StatusText(v.Status)
	}
	_, _ = io.WriteString(w, body+"\n") // the client may be gone
}

// pause lets d pass, unless the client gives up before.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
