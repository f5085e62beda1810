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
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestIgnoreFlakes(t *testing.T) {
	reset := &url.Error{Op: "Get", URL: "https://10.0.0.1/", Err: syscall.ECONNRESET}
	for _, err := range []error{
		nil,
		fmt.Errorf("getting a migration: %w", reset),
		fmt.Errorf("getting a migration: %w", context.DeadlineExceeded),
		apierrors.NewTooManyRequests("wait", 1),
		fmt.Errorf("getting a migration: %w", apierrors.NewServiceUnavailable("starting")),
	} {
		if got := IgnoreFlakes(err); got != nil {
			t.Errorf("%v is kept", err)
		}
	}
	for _, err := range []error{
		errors.New("the migration has ended: " + reset.Error()), // What a migrator quotes is a verdict.
		apierrors.NewNotFound(schema.GroupResource{Resource: "storageversions"}, "gadgets"),
		apierrors.NewInternalError(errors.New("broken")),
	} {
		if IgnoreFlakes(err) == nil {
			t.Errorf("%v is dropped", err)
		}
	}
}
