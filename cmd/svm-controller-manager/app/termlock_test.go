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

package app

import (
	"strings"
	"testing"
)

// TestVersionLabel wants a value that the API server accepts: otherwise it refuses the Lease, and nobody leads.
func TestVersionLabel(t *testing.T) {
	for release, want := range map[string]string{
		"v0.2.0":                            "v0.2.0",
		"v0.1.0-dev+0123456789ab":           "v0.1.0-dev_0123456789ab",
		"v0.0.0-master+$Format:%H$":         "", // what a program says that was built without a version
		"v0.2.0-" + strings.Repeat("a", 60): "",
	} {
		if got := versionLabel(release); got != want {
			t.Errorf("the label of %s is %q, want %q", release, got, want)
		}
	}
}
