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
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
)

// reportEvery is how often a line is printed if ErrOut is not a terminal.
const reportEvery = 10 * time.Second

// reporter prints what happens. Only one goroutine may call it.
type reporter struct {
	*cli.Env
	said   string
	saidAt time.Time
}

// report prints how far a migration is: a bar on a terminal, otherwise a line whenever the state changes and every ten
// seconds.
func (r *reporter) report(m *migrationv1alpha1.StorageVersionMigration) {
	state := cli.CurrentCondition(m)
	now, resource := r.Clock.Now(), m.GroupResource().String()
	text := fmt.Sprintf("%s: waiting for the servers", resource)
	// Progress changes all the time, other states only when there is something to say.
	key := resource + string(state.Type) + state.Reason
	switch {
	case state.Type == migrationv1alpha1.MigrationWaiting:
		// The migrator of this command words its messages as that of a manager.
		text = fmt.Sprintf("%s: waiting: %s", resource, strings.ReplaceAll(state.Message, "this manager", "this command"))
		key += state.Message
	case state.Type == migrationv1alpha1.MigrationRunning:
		text = fmt.Sprintf("%s: %s", resource, assess.Describe(m).Progress(now))
		if state.Reason != migrationv1alpha1.MigrationReasonRewriting {
			text += ": " + state.Message
		}
	}
	switch {
	case r.Interactive && state.Type == migrationv1alpha1.MigrationRunning:
		r.Overwrite(text)
	case key == r.said && (state.Type != migrationv1alpha1.MigrationRunning || now.Sub(r.saidAt) < reportEvery):
		return
	default:
		r.Notef("%s", text)
	}
	r.said, r.saidAt = key, now
}

// printedEvents are the reasons of the events that no condition repeats.
var printedEvents = map[string]bool{
	svmigrator.EventStoredVersionsPruned: true, svmigrator.EventStoredVersionsNotPruned: true,
	svmigrator.EventStatusNotWritten: true,
}

// recorder prints events of the migrator. It has the methods that the migrator calls. The others are nil.
type recorder struct {
	record.EventRecorderLogger
	env *cli.Env
}

func (r recorder) Event(_ runtime.Object, _, reason, message string) {
	if printedEvents[reason] {
		r.env.Notef("%s", message)
	}
}

func (r recorder) WithLogger(klog.Logger) record.EventRecorderLogger { return r }
