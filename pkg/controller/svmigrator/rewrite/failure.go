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
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// failureKind is what an error means to the program that sent the request, and what follows from it.
type failureKind struct {
	name string
	// passes means that the same request may succeed later.
	passes bool
	// signal is what the failure of a rewrite shows the pacer.
	signal pacer.Signal
	// outcome is that of the object, or NoOutcome if the answer does not decide it.
	outcome sweep.Outcome
	// readsObject means that the answer proves nothing, so the object is read.
	readsObject bool
	// mayBeObject means that the object may be the reason, so that the runner gives up on it some time.
	mayBeObject bool
	// otherWay means that the rewrite may succeed in another way.
	otherWay bool
	// restartsList means that a list has to begin anew.
	restartsList bool
	// ends is the error that ends the run, if its reason is not empty. atOnce means that the run ends without
	// startPatience.
	ends   PermanentError
	atOnce bool
}

// The kinds of failures. RetriedRequests counts by their names.
var (
	// interrupted: this program cancelled the request.
	interrupted = failureKind{name: "Interrupted", signal: pacer.Abandoned}
	// unreachable: no API server answered. It may have done what the request asked for.
	unreachable = failureKind{name: "Unreachable", passes: true, signal: pacer.Unreachable}
	// unauthenticated: the API server does not accept the credentials. That may pass with the next token.
	unauthenticated = failureKind{name: "Unauthenticated", passes: true, signal: pacer.Unreachable}
	// overloaded: the API server asks for fewer requests, or takes too long, or its etcd cannot write for now.
	overloaded = failureKind{name: "Overloaded", passes: true, signal: pacer.Overloaded}
	// storageFull: etcd accepts no writes, because its database has reached the quota. That passes when an administrator
	// has freed space.
	storageFull = failureKind{name: "StorageFull", passes: true, signal: pacer.Overloaded}
	// aggregatedAway: the aggregated server behind the API server does not answer, cannot write, or asks to wait. The API
	// server itself is fine.
	aggregatedAway = failureKind{name: "AggregatedServerAway", passes: true}
	// definitionUnread: the CustomResourceDefinition could not be read, so nothing was sent for the object. Nothing is
	// known about writes of objects.
	definitionUnread = failureKind{name: "DefinitionUnread", passes: true}
	// internal: the API server failed on this request. That may pass, for example when a webhook answers again.
	internal = failureKind{name: "Internal", passes: true, mayBeObject: true, otherWay: true}
	// conflicting: somebody may have written the object after it was listed.
	conflicting = failureKind{name: "Conflicting", readsObject: true}
	// objectGone: the object does not exist.
	objectGone = failureKind{name: "ObjectGone", readsObject: true}
	// tokenExpired: the list cannot continue with its continue token.
	tokenExpired = failureKind{name: "TokenExpired", restartsList: true}
	// refused: the API server will give the same answer until the object or the rules change.
	refused = failureKind{name: "Refused", outcome: sweep.Denied, otherWay: true, ends: PermanentError{
		migrationv1alpha1.MigrationReasonListRefused, "The API server refuses to list the objects"}}
	// tooLong: an answer cannot be read, or the next list cannot be asked for. Who may create objects may cause this, and
	// take it back.
	tooLong = failureKind{name: "TooLong", outcome: sweep.Denied, ends: PermanentError{
		migrationv1alpha1.MigrationReasonListRefused, "The objects cannot be listed"}}
	// resourceGone: the server does not serve the resource at this version.
	resourceGone = failureKind{name: "ResourceGone", otherWay: true, ends: PermanentError{
		migrationv1alpha1.MigrationReasonResourceNotServed, "The resource is not served any more"}}
	// unsupported: the server cannot list or patch the resource in the way that a migration does.
	unsupported = failureKind{name: "Unsupported", otherWay: true, atOnce: true, ends: PermanentError{
		migrationv1alpha1.MigrationReasonVerbsNotSupported,
		"The API server cannot rewrite objects of the resource in the way that a migration does"}}
	// changesObject: the rewrite changes more than the encoding, or would change more if the fence did not deny it.
	changesObject = failureKind{name: "Changing", otherWay: true, atOnce: true, ends: PermanentError{
		migrationv1alpha1.MigrationReasonRewritesChangeObjects, "Writing the objects changes more than their encoding"}}
)

// Failure is an error of an API server, or on the way to it, with what it means.
type Failure struct {
	kind failureKind
	// reason and message are those of the API server's answer, without the values of fields.
	reason  metav1.StatusReason
	message string
	// answered means that an API server answered, or a proxy.
	answered bool
	// timedOut means that the request took too long. That may be the fault of one object, or of the API server.
	timedOut bool
	// retryAfter is how long the API server asks clients to wait, at most pacer.MaxRetryAfter.
	retryAfter time.Duration
	// byAdmission means that admission gave the answer.
	byAdmission bool
	// deniedForChange means that the object is denied because a rewrite would change it. Others may be the same.
	deniedForChange bool
	// token continues the list whose token expired. It is empty if the server gave none.
	token string
}

// Classify says what an error means to the program that sent the request. All requests to list, read and rewrite
// objects use it. The migrator also uses it for the patch of status.storedVersions, and to show errors at the end of a
// migration. name is the name of the object that the request was about, or empty for a list.
func Classify(err error, name string) Failure {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return classifyUnanswered(err)
	}
	status := answer.Status()
	f := Failure{answered: true, reason: status.Reason, message: messageOf(status), token: status.Continue}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		f.retryAfter = min(time.Duration(seconds)*time.Second, pacer.MaxRetryAfter)
	}
	f.byAdmission = name != "" && controller.DeniedByAdmission(status)
	switch code := int(status.Code); {
	case fence.Denies(status.Message):
		f.kind = changesObject
	case f.byAdmission && (code == http.StatusTooManyRequests || code >= http.StatusInternalServerError):
		f.kind = internal
	case f.byAdmission:
		f.kind = refused
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout,
		apierrors.IsServerTimeout(err):
		f.kind, f.timedOut = overloaded, code == http.StatusGatewayTimeout
	case code == http.StatusNotFound && documents.IsPageNotFound(err):
		f.kind = resourceGone
	case code != http.StatusInternalServerError && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// This is not the answer of an API server, but of a proxy in between.
		f.kind = unreachable
	case code == http.StatusUnauthorized:
		f.kind = unauthenticated
	case code == http.StatusInternalServerError && databaseFull(status.Message):
		f.kind = storageFull
	case code == http.StatusInternalServerError && tooLarge(status.Message):
		f.kind = refused
	case code == http.StatusInternalServerError && fromEtcd(status.Message):
		f.kind = overloaded
	case code >= http.StatusInternalServerError, code == http.StatusGone && name != "": // An object has no token.
		f.kind = internal
	case code == http.StatusConflict:
		f.kind = conflicting
	case code == http.StatusNotFound && name != "" && status.Details != nil && status.Details.Name == name:
		f.kind = objectGone
	case code == http.StatusNotFound && name != "" && status.Details != nil && status.Details.Name != "":
		// Admission did not find some other object. Usually that is the namespace, which was deleted before this object.
		f.kind = refused
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

// databaseFull reports whether etcd has reached its quota. A webhook may say the same about an etcd of its own, but API
// servers put words of theirs before it.
func databaseFull(message string) bool {
	return strings.HasPrefix(strings.TrimPrefix(message, "rpc error: code = ResourceExhausted desc = "),
		"etcdserver: mvcc: database space exceeded")
}

// fromEtcd reports whether the API server passes on an error of etcd, for example that it has no leader. It is not
// about the object.
func fromEtcd(message string) bool {
	return strings.HasPrefix(message, "etcdserver: ") || strings.HasPrefix(message, "rpc error: code = Unavailable ")
}

// tooLarge reports whether etcd, or the API server's client of etcd, does not take the object because of its size.
func tooLarge(message string) bool {
	return strings.HasPrefix(message, "etcdserver: request is too large") ||
		strings.Contains(message, "trying to send message larger than max")
}

func classifyUnanswered(err error) Failure {
	f := Failure{kind: unreachable, message: err.Error()}
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		f.kind = interrupted
	case errors.Is(err, errDefinitionUnread):
		f.kind = definitionUnread
	case errors.Is(err, errUnidentified), errors.Is(err, errSameToken):
		f.kind = unsupported
	case errors.Is(err, errTokenTooLong), errors.Is(err, documents.ErrTooLong):
		f.kind = tooLong
	case runtime.IsNotRegisteredError(err):
		f.kind = unsupported
		f.message = "it does not answer with metadata alone: " + f.message
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		f.kind, f.timedOut = overloaded, true
	}
	return f
}

// lacksPermission reports whether this program is not allowed to use one of the verbs on objects of the resource.
func (f Failure) lacksPermission(verbs ...string) bool {
	named := func(verb string) bool { return strings.Contains(f.message, " cannot "+verb+" resource ") }
	return f.kind == refused && f.reason == metav1.StatusReasonForbidden && !f.byAdmission &&
		slices.ContainsFunc(verbs, named)
}

// unready reports whether an API server answers so when it has just started: it has not read its roles yet, or its
// admission plugins have not read what they need.
func (f Failure) unready() bool {
	return f.lacksPermission("get", "patch") || f.kind == refused && f.reason == metav1.StatusReasonForbidden &&
		strings.HasSuffix(f.message, "not yet ready to handle request")
}

// PermissionRemedy is in the message of a migration that failed because the manager lacks a permission.
const PermissionRemedy = "Allow the manager to get, list and patch the objects"

// remedy returns what an administrator can do about a missing permission, or an empty string.
func (f Failure) remedy() string {
	if !f.lacksPermission("list", "get", "patch") {
		return ""
	}
	return ". " + PermissionRemedy + `; for custom resources, "kubectl svm rbac" prints a ClusterRole that does`
}

// Passes reports whether the same request may succeed later.
func (f Failure) Passes() bool { return f.kind.passes }

// permanentError returns the error that ends a run because of this failure.
func (f Failure) permanentError() *PermanentError {
	p := f.kind.ends
	return &PermanentError{p.Reason, fmt.Sprintf("%s: %s%s", p.Message, f, f.remedy())}
}

// String returns the reason and message of the API server's answer, short enough for a condition.
func (f Failure) String() string {
	message := truncate(f.message, migrationv1alpha1.MaxDeniedObjectMessageLength)
	if f.reason != "" && f.reason != metav1.StatusReasonUnknown {
		return string(f.reason) + ": " + message
	}
	return message
}

func truncate[S ~string](s S, n int) S { return S(migrationv1alpha1.TruncateRunes(string(s), n)) }
