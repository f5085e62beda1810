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
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// ErrTooLong says that an answer is longer than AtMost allows.
var ErrTooLong = errors.New("its answer has more bytes than this program reads")

// mostBytes is the key of AtMost.
type mostBytes struct{}

// AtMost bounds the answer to a request with this context, if BoundAnswers has prepared the client.
func AtMost(ctx context.Context, bytes int64) context.Context {
	return context.WithValue(ctx, mostBytes{}, bytes)
}

// BoundAnswers makes clients of the config read no more of an answer than AtMost allows. An aggregated server sends
// what it likes, and client-go would read all of it.
func BoundAnswers(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundsAnswers{next} })
}

type boundsAnswers struct{ next http.RoundTripper }

func (b boundsAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	most, bounded := request.Context().Value(mostBytes{}).(int64)
	if err != nil || !bounded {
		return response, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	_ = response.Body.Close()
	switch {
	case int64(len(body)) > most:
		return nil, ErrTooLong
	case request.Context().Err() != nil: // Nobody waits for the answer. client-go would log the error.
		return nil, request.Context().Err()
	}
	// An error belongs to the answer: a server was reached.
	response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
	return response, nil
}

// WrappedRoundTripper is how client-go finds the transport, for example to close idle connections.
func (b boundsAnswers) WrappedRoundTripper() http.RoundTripper { return b.next }

// failing ends a body with an error, or with io.EOF if it is nil.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}
