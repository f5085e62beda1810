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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// TestConclude makes sure that scripts see the worst of several ends.
func TestConclude(t *testing.T) {
	const (
		succeeded = migrationv1alpha1.MigrationReasonAllObjectsMigrated
		denied    = migrationv1alpha1.MigrationReasonObjectsDenied
		changed   = migrationv1alpha1.MigrationReasonRewritesChangeObjects
		refused   = migrationv1alpha1.MigrationReasonListRefused
		running   = ""
	)
	for name, test := range map[string]struct {
		ends []string
		want int
	}{
		"all succeeded":              {[]string{succeeded, succeeded}, cli.ExitDone},
		"objects denied":             {[]string{denied, succeeded}, cli.ExitNotSafe},
		"rewrites change objects":    {[]string{succeeded, changed}, cli.ExitNotSafe},
		"refused":                    {[]string{refused, succeeded}, cli.ExitNotSafe},
		"interrupted after a denial": {[]string{denied, running}, cli.ExitError},
	} {
		t.Run(name, func(t *testing.T) {
			var ended []migrationv1alpha1.StorageVersionMigration
			for _, reason := range test.ends {
				m := widgetsMigration()
				condition := migrationv1alpha1.MigrationFailed
				switch reason {
				case succeeded:
					condition = migrationv1alpha1.MigrationSucceeded
				case running:
					condition = migrationv1alpha1.MigrationRunning
				}
				m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
					{Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: "A webhook said \x1b[2J."},
				}
				if reason == denied {
					m.Status.Conditions[0].Message = "See status.deniedObjects."
				}
				ended = append(ended, *m)
			}
			o := &Options{}
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			o.Env = &cli.Env{IOStreams: streams}
			if got := cli.ExitCode(o.conclude(t.Context(), ended), o.Env); got != test.want {
				t.Errorf("the exit code is %d, want %d", got, test.want)
			}
			if strings.Contains(out.String(), "status.deniedObjects") {
				t.Errorf("a run has no status, and the command prints: %s", out)
			}
			if strings.Contains(out.String(), "\x1b") {
				t.Errorf("a terminal would obey %q", out)
			}
		})
	}
}

// TestInterruptedAfterASuccess wants the error to name what has not succeeded. With the names of the others, the
// command would migrate them once more.
func TestInterruptedAfterASuccess(t *testing.T) {
	done, open := widgetsMigration(), widgetsMigration()
	done.Spec.Resource.Resource = "gadgets"
	done.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationSucceeded, Status: corev1.ConditionTrue},
	}
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: streams}}}
	for want, ended := range map[string][]migrationv1alpha1.StorageVersionMigration{
		"--resume, and name only what has not succeeded: widgets.example.com": {*done, *open},
		"run the same command with --resume":                                  {*open, *open},
	} {
		if err := o.conclude(t.Context(), ended); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

func TestResumeWithoutAFile(t *testing.T) {
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	o := &Options{StateDir: t.TempDir(), Resume: true}
	o.Env = &cli.Env{IOStreams: streams, Clock: clock.RealClock{}}
	of := []schema.GroupResource{widgetsMigration().GroupResource()}
	if _, err := o.prepare(of, origin{}); err != nil || !strings.Contains(errOut.String(), "starts from the beginning") {
		t.Errorf("got the error %v and %q", err, errOut)
	}
}
