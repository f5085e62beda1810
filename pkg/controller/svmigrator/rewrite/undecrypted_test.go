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
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNotDecrypted has the messages of API servers. A person must not take them for damaged objects.
func TestNotDecrypted(t *testing.T) {
	const (
		corrupt = "StorageError: corrupt object, Code: 7, Key: /registry/secrets/default/a, ResourceVersion: 0, " +
			"AdditionalErrorMsg: "
		noKey = "no matching key was found for the provided AES transformer"
	)
	for message, want := range map[string]bool{
		`unable to transform key "/registry/secrets/default/a": ` + noKey:                      true,
		`unable to transform key "/registry/secrets/default/a": rpc error: code = Unavailable`: true,
		"data from the storage is not transformable revision=0: " + noKey:                      true,
		corrupt + "data from the storage is not transformable revision=0: " + noKey:            true,
		noKey:                      true,
		"no matching prefix found": true,
		"identity transformer tried to read encrypted data":                       true,
		"failed to decrypt DEK, error: rpc error: code = Unavailable desc = gone": true,
		"got unexpected nil transformer":                                          true,
		`encryptedDEKSource with keyID hash "sha256:6b" expired at 2026-11-30`:    true,
		"[cipher: message authentication failed, no matching prefix found]":       true,
		corrupt + "object not decodable revision=4: unexpected EOF":               false,
		"unexpected EOF": false,
		`failed calling webhook "a": no matching key found`: false,
	} {
		failure := Classify(apierrors.NewInternalError(errors.New(message)), "")
		got := FailingRequests{What: "Listing the next objects has failed", Failure: failure}.String()
		if strings.HasSuffix(got, ". "+KeyRemedy) != want {
			t.Errorf("the message is %s", got)
		}
	}
	const list = "failed to read one or more secrets from the storage: "
	const notTransformable = corrupt + "data from the storage is not transformable revision=0: " + noKey
	before := messageOf(metav1.Status{ // of API servers before 1.37
		Reason: metav1.StatusReasonStoreReadError, Message: strings.TrimSuffix(list, ": "),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: notTransformable}}},
	})
	if !NotDecrypted.MatchString(before) || !NotDecrypted.MatchString(list+notTransformable) ||
		NotDecrypted.MatchString(list+corrupt+"object not decodable revision=4: unexpected EOF") ||
		NotDecrypted.MatchString(`admission webhook "a" denied the request: `+noKey) {
		t.Error("it takes other messages for these")
	}
}
