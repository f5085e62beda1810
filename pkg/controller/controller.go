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

// Package controller has what the controllers of this project share.
package controller

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// MigratorFieldManager is the field manager of the migrator. A rewrite changes no field, so it gets no entry in
// managedFields. Pruning status.storedVersions does.
const MigratorFieldManager = "storage-version-migrator"

const (
	// ClockTolerance is by how much a time in a state may lie in the future. The clocks of hosts differ a little.
	ClockTolerance = time.Minute
	// MaxEventLength bounds the messages of events, in characters. The API group events.k8s.io has the same bound.
	MaxEventLength = 1024
)

// ErrOutdated is why a write was refused or not made: what was read before has changed since. It is no failure. The
// controller decides again on what is there now.
var ErrOutdated = errors.New("what was read is out of date")

// ErrFieldsRefused ends a controller and its manager.
//
// kube-storage-version-migrator has CustomResourceDefinitions of the same names, which lack fields. Where those are
// installed, the API server drops these fields from what it is sent. A state would lose its epoch, and the trigger
// would begin another one without end. So the manager looks for the fields before it makes a controller. Later each
// write with these fields asks the API server to refuse fields that the definition lacks. After the first refusal the
// manager ends, and its successor waits for the definitions.
var ErrFieldsRefused = errors.New("the API server refused fields of an object: the CustomResourceDefinitions of " +
	migrationv1alpha1.GroupName + " were replaced by others, such as those of kube-storage-version-migrator. Apply " +
	"those of this release")

// EndsManager returns ErrFieldsRefused or storageversion.ErrRestored, with details, if that is what err is or says,
// otherwise nil.
func EndsManager(err error) error {
	switch {
	case errors.Is(err, ErrFieldsRefused), errors.Is(err, storageversion.ErrRestored):
		return err
	case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "strict decoding error"):
		return fmt.Errorf("%w: %w", ErrFieldsRefused, err)
	default:
		return nil
	}
}

// SaysMissing reports whether err is the API server's own statement that this very object does not exist. A proxy, or a
// server that does not serve the group, answers 404 as well; such an answer says nothing about the object.
func SaysMissing(err error, resource schema.GroupResource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Group == resource.Group && details.Kind == resource.Resource && details.Name == name
}

// StateMissing reports whether err is the API server's own statement that a StorageState does not exist.
func StateMissing(err error, name string) bool {
	return SaysMissing(err, migrationv1alpha1.Resource("storagestates"), name)
}

// MigrationMissing reports whether err is the API server's own statement that a migration does not exist.
func MigrationMissing(err error, name string) bool {
	return SaysMissing(err, migrationv1alpha1.Resource("storageversionmigrations"), name)
}

// DeniedByAdmission reports whether an answer is the denial of an admission webhook or policy. The author of the
// webhook or policy chooses the status code, often that of another request. So the code may say whether trying again
// helps, but nothing about the state of the API server, and a 404 does not mean that the object is gone.
func DeniedByAdmission(status metav1.Status) bool {
	message := status.Message
	byWebhook := strings.HasPrefix(message, "admission webhook ") && strings.Contains(message, " denied the request")
	byPolicy := strings.Contains(message, " is forbidden: ValidatingAdmissionPolicy ")
	return byWebhook || byPolicy && strings.Contains(message, " denied request: ")
}

// IfUnchanged returns the options to delete an object only if nobody has written it since it was read.
func IfUnchanged(object metav1.Object) metav1.DeleteOptions {
	uid, resourceVersion := object.GetUID(), object.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion}}
}

// Refused reports whether the API server refuses a write until somebody changes something: a permission, a rule of
// admission, a webhook that is away.
func Refused(err error) bool {
	var answer apierrors.APIStatus
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || errors.As(err, &answer) &&
		(DeniedByAdmission(answer.Status()) || strings.Contains(answer.Status().Message, "failed calling webhook"))
}

// Sentence returns s with an upper case first letter and a full stop.
func Sentence(s string) string {
	if s == "" {
		return ""
	}
	_, first := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:first]) + strings.TrimSuffix(s[first:], ".") + "."
}
