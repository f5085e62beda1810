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

package features

import (
	"testing"

	"k8s.io/component-base/featuregate"
)

func TestGatesAreVersioned(t *testing.T) {
	for gate, specs := range specifications {
		if len(specs) == 0 {
			t.Errorf("gate %q has no specification", gate)
		}
		for _, spec := range specs {
			if spec.Version == nil {
				t.Errorf("gate %q has a specification without a version", gate)
			}
			if spec.PreRelease == featuregate.Alpha && spec.Default {
				t.Errorf("gate %q is alpha and on by default", gate)
			}
		}
	}
}
