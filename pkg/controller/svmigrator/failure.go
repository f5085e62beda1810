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

package svmigrator

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// failureKind is what follows from an error for whoever sent the request.
type failureKind string

const (
	// interrupted: we ended the request.
	interrupted failureKind = "Interrupted"
	// unreachable: no API server answered. It may have done what it was asked for.
	unreachable failureKind = "Unreachable"
	// overloaded: the API server asks for less.
	overloaded failureKind = "Overloaded"
	// behindAway: the API server that was asked has no answer from an aggregated one behind it. That says nothing about itself.
	behindAway failureKind = "BehindAway"
	// unauthenticated: the credentials are not accepted, which a new token mends.
	unauthenticated failureKind = "Unauthenticated"
	// internal: the API server failed on this request. That may pass, as an outage of a webhook, or not.
	internal failureKind = "Internal"
	// conflicting: the object is not, or not surely, what it was when it was listed.
	conflicting failureKind = "Conflicting"
	// objectGone: this object does not exist.
	objectGone failureKind = "ObjectGone"
	// resourceGone: the resource is not served, at least not at this version.
	resourceGone failureKind = "ResourceGone"
	// tokenExpired: the list cannot go on with its continue token.
	tokenExpired failureKind = "TokenExpired"
	// unsupported: the resource cannot be listed or written in the way that a migration does.
	unsupported failureKind = "Unsupported"
	// refused: the API server will answer the same again for as long as neither the object nor the rules change.
	refused failureKind = "Refused"
)

// failure is an error of an API server, or on the way to one, put into its class.
type failure struct {
	kind failureKind
	// reason and message are the API server's own words.
	reason  metav1.StatusReason
	message string
	// retryAfter is how long the API server asks us to wait.
	retryAfter time.Duration
	// token goes on where the expired one ended, empty if there is none.
	token string
}

// classify is the one table of errors for all requests that are about objects. name is that of the object, empty for lists.
func classify(err error, name string) failure {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return classifyUnanswered(err)
	}
	status := answer.Status()
	f := failure{reason: status.Reason, message: status.Message, token: status.Continue}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		f.retryAfter = time.Duration(seconds) * time.Second
	}
	switch code := int(status.Code); {
	case deniedByAdmission(status, name) && (code == http.StatusTooManyRequests || code >= http.StatusInternalServerError):
		f.kind = internal
	case deniedByAdmission(status, name):
		f.kind = refused
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout,
		apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		f.kind = overloaded
	case code == http.StatusNotFound && saysNotServed(err):
		f.kind = resourceGone
	case code != http.StatusInternalServerError && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// Not an API server's words: a proxy in between answered.
		f.kind = unreachable
	case code == http.StatusUnauthorized:
		f.kind = unauthenticated
	case code >= http.StatusInternalServerError:
		f.kind = internal
	case code == http.StatusConflict:
		f.kind = conflicting
	case code == http.StatusNotFound && name != "" && status.Details != nil && status.Details.Name == name:
		f.kind = objectGone
	case code == http.StatusNotFound:
		f.kind = resourceGone
	case code == http.StatusGone:
		f.kind = tokenExpired
	case code == http.StatusMethodNotAllowed, code == http.StatusNotAcceptable, code == http.StatusUnsupportedMediaType:
		f.kind = unsupported
	default:
		f.kind = refused
	}
	return f
}

// deniedByAdmission is true for the verdict of an admission webhook or policy on an object. Its author chooses the code of the answer, and often passes
// on that of a request of his own: it may say that the verdict passes, and says nothing about the API server, nor that the object that is written is gone.
func deniedByAdmission(status metav1.Status, name string) bool {
	if name == "" {
		return false
	}
	return strings.HasPrefix(status.Message, "admission webhook ") && strings.Contains(status.Message, " denied the request") ||
		strings.Contains(status.Message, " is forbidden: ValidatingAdmissionPolicy ") && strings.Contains(status.Message, " denied request: ")
}

// saysNotServed is true for what an API server answers where it serves nothing. That is plain text, and not in the words of its API.
func saysNotServed(err error) bool {
	cause, found := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return found && strings.TrimSpace(cause.Message) == "404 page not found"
}

func classifyUnanswered(err error) failure {
	f := failure{kind: unreachable, message: err.Error()}
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		f.kind = interrupted
	case runtime.IsNotRegisteredError(err):
		f.kind = unsupported
		f.message = "it does not answer with the metadata of objects alone: " + f.message
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		f.kind = overloaded
	}
	return f
}

// passes says that the same request may be answered otherwise later.
func (f failure) passes() bool {
	switch f.kind {
	case unreachable, overloaded, behindAway, unauthenticated, internal:
		return true
	default:
		return false
	}
}

// inShort is what a condition says of it.
func (f failure) inShort() string {
	message := firstRunes(f.message, migrationv1alpha1.MaxDeniedObjectMessageLength)
	if f.reason != "" && f.reason != metav1.StatusReasonUnknown {
		return string(f.reason) + ": " + message
	}
	return message
}

func firstRunes(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n])
	}
	return s
}
