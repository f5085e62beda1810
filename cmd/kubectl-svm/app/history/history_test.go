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

package history

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

func TestScreen(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(-d)} }
	done := migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets-1", CreationTimestamp: *ago(3 * time.Hour)},
	}
	done.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"}
	done.Spec.Target = &migrationv1alpha1.MigrationTarget{Epoch: ptr.To[int64](1)}
	done.Status.Target = &migrationv1alpha1.MigrationTarget{EncodingVersion: "example.com/v2"}
	done.Status.StartTime, done.Status.CompletionTime = ago(2*time.Hour), ago(time.Hour)
	done.Status.Progress = &migrationv1alpha1.MigrationProgress{Processed: 5000}
	done.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: "Running", Status: "False"},
		{Type: "Succeeded", Status: "True", Reason: "AllObjectsMigrated", Message: "Done."},
	}
	unseen := migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "secrets-x", CreationTimestamp: *ago(time.Minute)},
	}
	unseen.Spec.Resource.Resource = "secrets"
	const want = `NAME        RESOURCE              TO               STATE       REASON               OBJECTS   ` +
		`DENIED   TOOK   AGE   BY            MESSAGE
secrets-x   secrets                                Pending                                      ` +
		`              60s   a person
widgets-1   widgets.example.com   example.com/v2   Succeeded   AllObjectsMigrated   5000      0        ` +
		`60m    3h    the trigger   Done.
`
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	o := &Options{
		NamedOptions: cli.NamedOptions{
			Env:    &cli.Env{IOStreams: streams, Clock: clocktesting.NewFakeClock(now)},
			Output: cli.Output{Format: cli.Wide},
		},
	}
	migrations := []migrationv1alpha1.StorageVersionMigration{done, unseen}
	cli.NewestFirst(migrations)
	o.print(migrations)
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	out.Reset()
	o.Output.Format = ""
	stuck := unseen
	stuck.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: "Running", Status: "True", Reason: "RetryingTransientErrors", Message: "A webhook is away."},
	}
	o.print([]migrationv1alpha1.StorageVersionMigration{done, stuck})
	if got := out.String(); !strings.HasSuffix(got, "\n\nsecrets-x: A webhook is away.\n") {
		t.Errorf("got\n%s\nwant what is wrong at its end", got)
	}

	out.Reset()
	o.Output.Format = cli.Name
	o.print(migrations)
	const names = "storageversionmigration.migration.k8s.io/secrets-x\n" +
		"storageversionmigration.migration.k8s.io/widgets-1\n"
	if got := out.String(); got != names {
		t.Errorf("got the names\n%s\nwant\n%s", got, names)
	}
}
