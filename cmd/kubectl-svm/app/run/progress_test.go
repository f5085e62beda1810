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

package run

import (
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// TestWhoWaits has a message of the migrator, which names a manager where there is none.
func TestWhoWaits(t *testing.T) {
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	r := reporter{Env: &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}}
	m := &migrationv1alpha1.StorageVersionMigration{}
	m.Spec.Resource.Resource = "secrets"
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
		Type: migrationv1alpha1.MigrationWaiting, Status: "True",
		Message: "An API server ended, or this manager started then.",
	}}
	r.report(m)
	if got := errOut.String(); got != "secrets: waiting: An API server ended, or this command started then.\n" {
		t.Errorf("it printed %q", got)
	}
}
