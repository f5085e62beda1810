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
	"testing"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestNewer compares resource versions. Only kube-apiserver is known to count up: if those of an aggregated server were
// compared, objects that it has not rewritten would count as written by others.
func TestNewer(t *testing.T) {
	for _, test := range []struct {
		class storageversion.Class
		a, b  string
		want  bool
	}{
		{storageversion.BuiltIn, "10", "9", true},
		{storageversion.Custom, "10", "9", true},
		{storageversion.Custom, "9", "10", false},
		{storageversion.Custom, "9", "9", false},
		{storageversion.Custom, "v10", "9", false},
		{storageversion.Aggregated, "10", "9", false},
		{"", "10", "9", false},
	} {
		if got := newer(test.class)(test.a, test.b); got != test.want {
			t.Errorf("%q of class %q is newer than %q: %v", test.a, test.class, test.b, got)
		}
	}
}
