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

package controller

import (
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
)

// RefuseRedirects has writes fail that are answered with a redirect. A client would follow it with a GET, and whoever
// sent the write would take the answer for that of the write.
func RefuseRedirects(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusesRedirects{next} })
}

type refusesRedirects struct{ next http.RoundTripper }

func (r refusesRedirects) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err != nil || request.Method == http.MethodGet || request.Method == http.MethodHead {
		return response, err
	}
	switch response.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther:
		_ = response.Body.Close()
		return nil, fmt.Errorf("the answer is a redirect to %q, which a %s cannot follow. Use the address of the API "+
			"server in the kubeconfig", response.Header.Get("Location"), request.Method)
	}
	return response, nil
}

// WrappedRoundTripper is how client-go finds the transport, for example to close idle connections.
func (r refusesRedirects) WrappedRoundTripper() http.RoundTripper { return r.next }
