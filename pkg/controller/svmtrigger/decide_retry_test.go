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

package svmtrigger

import (
	"testing"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// TestEmptiedRetryToken has an old annotation come to light again when spec.retryToken is emptied.
func TestEmptiedRetryToken(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	fail := func() {
		l.ends(l.migration(), migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
		l.decide()
	}
	fail()
	ask := func(token, annotation string, attempts int) {
		t.Helper()
		l.in.State.Spec.RetryToken = token
		l.in.State.Annotations = map[string]string{migrationv1alpha1.RetryAnnotation: annotation}
		l.decide()
		l.after(time.Second)
		if len(l.created) != attempts {
			t.Fatalf("after the token %q and the annotation %q: created %q", token, annotation, l.created)
		}
	}
	ask("", "first", 2)
	fail()
	ask("second", "first", 3)
	fail()
	ask("", "first", 3)
	l.memory = Memory{} // another process
	ask("", "first", 3)
	ask("", "third", 4)
	fail()
	ask("fourth", "while it has no say", 5)
	fail()
	ask("", "while it has no say", 5)
	ask("fourth", "while it has no say", 6)
}
