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

package cli

import (
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Explain adds advice to an error of the API server, if there is any.
func Explain(err error) error { return ExplainOf(err, "--server, --kubeconfig and --context") }

// ExplainOf does that for the API server that these flags select.
func ExplainOf(err error, flags string) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nAsk an administrator of the cluster for this permission; "+
			"docs/kubectl-svm.md lists those that each command needs", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w\nThe API server does not accept the credentials of the kubeconfig: log in again", err)
	case errors.As(err, new(*url.Error)):
		return fmt.Errorf("%w\nThe API server could not be reached. %s select it", err, flags)
	default:
		return err
	}
}
