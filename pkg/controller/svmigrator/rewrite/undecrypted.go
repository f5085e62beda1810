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

import "regexp"

// NotDecrypted matches the message of an API server that cannot decrypt an object, or cannot encrypt it again. Mostly
// it lacks the key, or its KMS does not work, and the object is healthy. What an API server puts before the reason
// depends on the request, and on its feature gate AllowUnsafeMalformedObjectDeletion.
var NotDecrypted = regexp.MustCompile(
	`^(Internal error occurred: |failed to read one or more \S+ from the storage: )(StorageError: corrupt object, .*)?` +
		`(unable to transform key "|data from the storage is not transformable|\[?(no matching (prefix|key was) found|` +
		`identity transformer tried to read encrypted data|failed to decrypt DEK|got unexpected nil transformer|` +
		`encryptedDEKSource with keyID hash |cipher: message authentication failed|invalid padding on input|` +
		`invalid PKCS7 data|output array was not large enough for encryption))`)

// KeyRemedy is what an administrator can do about a message that NotDecrypted matches.
const KeyRemedy = "Delete nothing. Give every API server the encryption keys of all objects, and identity as the " +
	"last provider if some may be plain text, or repair the KMS"

// keyRemedy returns KeyRemedy as it follows the message, or an empty string if the failure is another one.
func (f Failure) keyRemedy() string {
	if !f.answered || !NotDecrypted.MatchString(f.message) {
		return ""
	}
	return ". " + KeyRemedy
}
