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
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// valued are the kinds of field errors in which the API server quotes the invalid value.
var valued = []string{"Invalid value", "Unsupported value", "Duplicate value", "Not found", "Too many", "Too few"}

// messageOf returns the message of an API server without the values of invalid fields, because people who may read
// migrations need not be allowed to read the objects.
func messageOf(status metav1.Status) string {
	if status.Reason == metav1.StatusReasonStoreReadError && strings.HasSuffix(status.Message, "from the storage") &&
		status.Details != nil && len(status.Details.Causes) > 0 {
		return status.Message + ": " + status.Details.Causes[0].Message // From 1.37 on the message has it.
	}
	if status.Reason != metav1.StatusReasonInvalid || status.Details == nil || len(status.Details.Causes) == 0 {
		return status.Message
	}
	var fields []string
	for _, cause := range status.Details.Causes {
		if cause.Field == "" {
			return status.Message // A policy denied the request, not the schema, and wrote the message.
		}
		// What follows the first line is a diff of the old and the new object.
		message, _, _ := strings.Cut(withoutValue(cause.Message), "\n")
		fields = append(fields, cause.Field+": "+message)
	}
	return fmt.Sprintf("%s %q is invalid: %s", status.Details.Kind, status.Details.Name, strings.Join(fields, ", "))
}

// withoutValue removes the value from the message about a field. Such a message is the kind of error, the value, and
// the detail. Rules of CustomResourceDefinitions leave the value out. Formats repeat it in the detail.
func withoutValue(message string) string {
	kind, rest, _ := strings.Cut(message, ": ")
	if !slices.Contains(valued, kind) {
		return message
	}
	value := valueAt(rest)
	detail := strings.TrimPrefix(rest, value)
	if value == "" || detail != "" && !strings.HasPrefix(detail, ": ") {
		value, detail = "", ": "+rest
	}
	for _, repeated := range []string{value, strings.Trim(value, `"`)} {
		if len(repeated) >= shortestValue {
			detail = strings.ReplaceAll(detail, repeated, "(value)")
		}
	}
	return kind + formatted.ReplaceAllString(detail, "$1")
}

// shortestValue is the length of a value that is removed from the detail too. A shorter one may be a part of any word.
const shortestValue = 3

var (
	// formatted is the end of the detail about a format, which repeats the value.
	formatted = regexp.MustCompile(`(?s)(must be of type [^:]*): .*$`)
	// goValue is the beginning of a value that the API server cannot encode, and prints as Go does.
	goValue = regexp.MustCompile(`^[&*]?[\w\[\]./*]+( \{\})?[{(]`)
)

// valueAt returns the value at the beginning of a text, or an empty string if there is none.
func valueAt(text string) string {
	if quoted, err := strconv.QuotedPrefix(text); err == nil {
		return quoted
	}
	if decoder := json.NewDecoder(strings.NewReader(text)); decoder.Decode(new(any)) == nil {
		return text[:decoder.InputOffset()]
	}
	if goValue.MatchString(text) {
		return text
	}
	return ""
}
