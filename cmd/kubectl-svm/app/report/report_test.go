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

package report

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/verify"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
)

// TestManager wants to know whether a manager runs, and whether the fence stands.
func TestManager(t *testing.T) {
	want := assess.Manager{Running: true, Message: "b leads.", Fence: "The fence is missing."}
	r := &Report{}
	if r.add(&preflight.Snapshot{Manager: want}); r.Manager != want {
		t.Errorf("the report has %+v", r.Manager)
	}
}

// TestTokens wants no continue tokens, which name objects.
func TestTokens(t *testing.T) {
	const token = "c2hvcC9kYi1wYXNzd29yZA"
	m := migrationv1alpha1.StorageVersionMigration{}
	m.Spec.ContinueToken = token
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{ContinueToken: token, Processed: 500}
	r := &Report{}
	r.add(&preflight.Snapshot{Migrations: []migrationv1alpha1.StorageVersionMigration{m}})
	if text := fmt.Sprintf("%+v %+v", r, r.Migrations[0].Status.Progress); strings.Contains(text, token) ||
		!strings.Contains(text, "Processed:500") {
		t.Errorf("the report has %s", text)
	}
}

// TestEtcd wants what was counted, also if there was nothing to compare it with.
func TestEtcd(t *testing.T) {
	unread := fmt.Errorf("%w: %w", verify.ErrNotCompared, errors.New("forbidden"))
	for _, test := range []struct {
		name                 string
		err                  error
		counted, notCompared bool
	}{
		{"all is well", nil, true, false},
		{"the StorageStates are encrypted", unread, true, true},
		{"etcd does not answer", errors.New("timeout"), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &Report{}
			r.addEtcd(&stored.Survey{Tallies: []stored.Tally{{Objects: 3}}}, test.err)
			if counted := r.Etcd != nil && r.Etcd.Objects == 3; counted != test.counted {
				t.Fatalf("etcd: %+v", r.Etcd)
			}
			if test.counted && r.Etcd.NotCompared != test.notCompared || (len(r.Problems) > 0) != (test.err != nil) {
				t.Errorf("etcd: %+v, problems: %v", r.Etcd, r.Problems)
			}
		})
	}
}
