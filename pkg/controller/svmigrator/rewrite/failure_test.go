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
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// answered is an answer that did not come from an API server's own code.
func answered(code int) error {
	return said(code, "<html>")
}

// said is an answer in other words than those of the API.
func said(code int, page string) error {
	return apierrors.NewGenericServerResponse(code, "PATCH", widgets, "w", page, 0, true)
}

// passedOn is what an API server answers if etcd, or its client of etcd, has returned this error.
func passedOn(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: message,
	}}
}

// verdict is what an API server answers of the verdict of an admission webhook.
func verdict(code int32, retryAfter int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code,
		Message: `admission webhook "w.example.com" denied the request: no`,
		Details: &metav1.StatusDetails{Name: "w", RetryAfterSeconds: retryAfter},
	}}
}

// fenced is what an API server answers if the fence refuses a write, or cannot be evaluated.
func fenced(why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "The widgets \"w\" is invalid: : ValidatingAdmissionPolicy 'svm-controller-manager-fence' with binding " +
			"'svm-controller-manager-fence' denied request: " + why,
		Details: &metav1.StatusDetails{Name: "w"},
	}}
}

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

func TestClassify(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "goes on"
	for name, test := range map[string]struct {
		err    error
		object string
		want   Failure
		passes bool
	}{
		"we ended it": {
			err: fmt.Errorf("x: %w", context.Canceled), want: Failure{kind: interrupted},
		},
		"nobody listens": {
			err:  &url.Error{Op: "Patch", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}},
			want: Failure{kind: unreachable}, passes: true,
		},
		"no answer in time": {
			err: fmt.Errorf("x: %w", context.DeadlineExceeded), want: Failure{kind: overloaded}, passes: true,
		},
		"told to wait": {
			err: apierrors.NewTooManyRequests("later", 7), want: Failure{kind: overloaded, retryAfter: 7 * time.Second},
			passes: true,
		},
		"told to wait for a day": {
			err: apierrors.NewTooManyRequests("later", 86400), want: Failure{kind: overloaded, retryAfter: 5 * time.Minute},
			passes: true,
		},
		"an object is answered as if it were a list": {
			err: apierrors.NewResourceExpired("too old"), object: "w", want: Failure{kind: internal}, passes: true,
		},
		"told to wait by a filter": {
			err: answered(http.StatusTooManyRequests), want: Failure{kind: overloaded}, passes: true,
		},
		"the server shuts down": {
			err: apierrors.NewServiceUnavailable("bye"), want: Failure{kind: overloaded}, passes: true,
		},
		"the server took too long": {
			err: apierrors.NewTimeoutError("34s", 1), want: Failure{kind: overloaded, retryAfter: time.Second}, passes: true,
		},
		"the token expired": {
			err: apierrors.NewUnauthorized("who?"), want: Failure{kind: unauthenticated}, passes: true,
		},
		"a webhook fails": {
			err: apierrors.NewInternalError(errors.New("failed calling webhook")), want: Failure{kind: internal}, passes: true,
		},
		"it is not served": {
			err:    said(http.StatusNotFound, "404 page not found\n"),
			object: "w", want: Failure{kind: resourceGone},
		},
		"the API server panics": {
			err:    said(http.StatusInternalServerError, "This request caused apiserver to panic."),
			object: "w", want: Failure{kind: internal}, passes: true,
		},
		"the fence refuses a change": {
			err:    fenced("svm-controller-manager may only send writes that change nothing"),
			object: "w", want: Failure{kind: changesObject},
		},
		"the fence cannot be evaluated": {
			err: fenced("expression 'x' resulted in error: y"), object: "w", want: Failure{kind: refused},
		},
		"etcd has no space": {
			err:    passedOn("etcdserver: mvcc: database space exceeded"),
			object: "w", want: Failure{kind: storageFull}, passes: true,
		},
		"the client of etcd says that etcd has no space": {
			err:    passedOn("rpc error: code = ResourceExhausted desc = etcdserver: mvcc: database space exceeded"),
			object: "w", want: Failure{kind: storageFull}, passes: true,
		},
		"the etcd of a webhook has no space": {
			err: apierrors.NewInternalError(errors.New(`failed calling webhook "a": failed to call webhook: an error on the ` +
				`server ("etcdserver: mvcc: database space exceeded") has prevented the request from succeeding`)),
			object: "w", want: Failure{kind: internal}, passes: true,
		},
		"etcd has no leader": {
			err:    passedOn("etcdserver: no leader"),
			object: "w", want: Failure{kind: overloaded}, passes: true,
		},
		"no member of etcd answers": {
			err:    passedOn("rpc error: code = Unavailable desc = connection error"),
			object: "w", want: Failure{kind: overloaded}, passes: true,
		},
		"the object is too large for etcd": {
			err:    passedOn("etcdserver: request is too large"),
			object: "w", want: Failure{kind: refused},
		},
		"the object is too large for the client of etcd": {
			err: passedOn("rpc error: code = ResourceExhausted desc = trying to send message larger than max " +
				"(2400000 vs. 2097152)"),
			object: "w", want: Failure{kind: refused},
		},
		"a proxy has nobody behind it": {
			err: answered(http.StatusBadGateway), object: "w", want: Failure{kind: unreachable}, passes: true,
		},
		"a proxy knows nothing of it": {
			err: answered(http.StatusNotFound), object: "w", want: Failure{kind: unreachable}, passes: true,
		},
		"a proxy forbids it": {
			err: answered(http.StatusForbidden), object: "w", want: Failure{kind: unreachable}, passes: true,
		},
		"somebody wrote it": {
			err: apierrors.NewConflict(widgets, "w", errors.New("rv")), object: "w", want: Failure{kind: conflicting},
		},
		"the object is gone": {
			err: apierrors.NewNotFound(widgets, "w"), object: "w", want: Failure{kind: objectGone},
		},
		"its namespace is gone": {
			err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "lost"), object: "w",
			want: Failure{kind: refused},
		},
		"the resource is gone": {
			err: apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", widgets, "", "", 0, false), object: "w",
			want: Failure{kind: resourceGone},
		},
		"the list cannot go on": {err: expired, want: Failure{kind: tokenExpired, token: "goes on"}},
		"the resource cannot be patched": {
			err: apierrors.NewMethodNotSupported(widgets, "patch"), object: "w", want: Failure{kind: unsupported},
		},
		"a policy forbids it": {
			err: apierrors.NewForbidden(widgets, "w", errors.New("policy")), object: "w", want: Failure{kind: refused},
		},
		"it is not valid any more": {
			err: apierrors.NewInvalid(schema.GroupKind{Group: widgets.Group, Kind: "Widget"}, "w", nil), object: "w",
			want: Failure{kind: refused},
		},
		"a webhook does not like the request": {
			err: apierrors.NewBadRequest("no"), object: "w", want: Failure{kind: refused},
		},
		"it is too large": {
			err: apierrors.NewRequestEntityTooLargeError("large"), object: "w", want: Failure{kind: refused},
		},
		"a webhook passes on that it missed something": {
			err: verdict(http.StatusNotFound, 0), object: "w", want: Failure{kind: refused},
		},
		"a webhook says gone": {
			err: verdict(http.StatusGone, 0), object: "w", want: Failure{kind: refused},
		},
		"a webhook asks who we are": {
			err: verdict(http.StatusUnauthorized, 0), object: "w", want: Failure{kind: refused},
		},
		"a webhook allows no updates": {
			err: verdict(http.StatusMethodNotAllowed, 0), object: "w", want: Failure{kind: refused},
		},
		"a webhook tells of a conflict": {
			err: verdict(http.StatusConflict, 0), object: "w", want: Failure{kind: refused},
		},
		"a webhook asks to wait": {
			err: verdict(http.StatusTooManyRequests, 9), object: "w", want: Failure{kind: internal, retryAfter: 9 * time.Second},
			passes: true,
		},
		"a webhook has nobody behind it": {
			err: verdict(http.StatusServiceUnavailable, 0), object: "w", want: Failure{kind: internal}, passes: true,
		},
		"a policy says unauthorized": {
			err: func() error {
				said := errors.New("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
				err := apierrors.NewForbidden(widgets, "w", said)
				err.ErrStatus.Code, err.ErrStatus.Reason = http.StatusUnauthorized, metav1.StatusReasonUnauthorized
				return err
			}(),
			object: "w", want: Failure{kind: refused},
		},
		"it does not answer with metadata": {
			err:    runtime.NewNotRegisteredErrForKind("scheme", widgets.WithVersion("v1").GroupVersion().WithKind("Widget")),
			object: "w", want: Failure{kind: unsupported},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Classify(test.err, test.object)
			if got.kind != test.want.kind || got.retryAfter != test.want.retryAfter || got.token != test.want.token ||
				got.Passes() != test.passes {
				t.Errorf("classified as %+v, which passes: %v", got, got.Passes())
			}
			if got.message == "" && got.kind != interrupted {
				t.Error("the words of the answer are lost")
			}
		})
	}
}

func TestFailureString(t *testing.T) {
	for want, f := range map[string]Failure{
		"Forbidden: no":        {reason: metav1.StatusReasonForbidden, message: "no"},
		"dial tcp: no route":   {message: "dial tcp: no route"},
		"something is missing": {reason: metav1.StatusReasonUnknown, message: "something is missing"},
	} {
		if got := f.String(); got != want {
			t.Errorf("%+v is %q in short, want %q", f, got, want)
		}
	}
}
