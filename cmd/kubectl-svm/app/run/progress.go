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
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	// reportEvery is how often there is a line where nobody sees a bar.
	reportEvery = 10 * time.Second
	barWidth    = 30
)

// reporter tells a person what happens. One goroutine calls it.
type reporter struct {
	*cli.Env
	said   string
	saidAt time.Time
}

// line prints a line, in place of the bar if there is one.
func (r *reporter) line(format string, args ...any) {
	r.clear()
	_, _ = fmt.Fprintf(r.ErrOut, format+"\n", args...)
}

// clear removes the bar.
func (r *reporter) clear() {
	if r.Interactive {
		_, _ = fmt.Fprint(r.ErrOut, "\r\x1b[K")
	}
}

// report tells how far a migration is: a bar on a terminal, elsewhere a line whenever the state changes and every ten
// seconds.
func (r *reporter) report(m *migrationv1alpha1.StorageVersionMigration) {
	state := cli.StateOf(m)
	now, resource := r.Clock.Now(), m.GroupResource().String()
	text := fmt.Sprintf("%s: waiting for the servers", resource)
	// Progress changes all the time, other states only when there is something to say.
	key := resource + string(state.Type) + state.Reason
	switch {
	case state.Type == migrationv1alpha1.MigrationWaiting:
		text = fmt.Sprintf("%s: waiting: %s", resource, state.Message)
		key += state.Message
	case state.Type == migrationv1alpha1.MigrationRunning && state.Reason != migrationv1alpha1.MigrationReasonRewriting:
		text = fmt.Sprintf("%s: %s %s", resource, progressOf(m), state.Message)
	case state.Type == migrationv1alpha1.MigrationRunning:
		text = fmt.Sprintf("%s: %s", resource, progressOf(m))
	}
	switch {
	case r.Interactive && state.Type == migrationv1alpha1.MigrationRunning:
		_, _ = fmt.Fprintf(r.ErrOut, "\r\x1b[K%s%s", bar(m), text)
	case key == r.said && (state.Type != migrationv1alpha1.MigrationRunning || now.Sub(r.saidAt) < reportEvery):
		return
	default:
		r.line("%s", text)
	}
	r.said, r.saidAt = key, now
}

// progressOf says how many objects are done, how fast, and when all will be.
func progressOf(m *migrationv1alpha1.StorageVersionMigration) string {
	p := m.Status.Progress
	if p == nil {
		return "0 objects done"
	}
	text := fmt.Sprintf("%d objects done", p.Processed)
	if p.EstimatedTotal != nil {
		text = fmt.Sprintf("%d of %d objects done", p.Processed, *p.EstimatedTotal)
	}
	if p.Denied > 0 {
		text += fmt.Sprintf(", %d denied", p.Denied)
	}
	if p.ObjectsPerMinute != nil {
		text += fmt.Sprintf(", %d a minute", *p.ObjectsPerMinute)
	}
	if at := m.Status.EstimatedCompletionTime; at != nil {
		text += ", done at " + at.UTC().Format(time.TimeOnly) + " UTC"
	}
	return text
}

// bar shows the percentage, if it is known.
func bar(m *migrationv1alpha1.StorageVersionMigration) string {
	if m.Status.Progress == nil || m.Status.Progress.PercentComplete == nil {
		return ""
	}
	percent := int(ptr.Deref(m.Status.Progress.PercentComplete, 0))
	done := barWidth * percent / 100
	return fmt.Sprintf("[%s%s] %3d%% ", strings.Repeat("=", done), strings.Repeat(" ", barWidth-done), percent)
}

// told are events that no condition tells.
var told = map[string]bool{"StoredVersionsPruned": true, "StoredVersionsNotPruned": true, "StatusNotWritten": true}

// recorder passes on the events of the migrator.
type recorder struct{ lines chan<- string }

var _ record.EventRecorderLogger = recorder{}

func (r recorder) Event(_ runtime.Object, _, reason, message string) {
	if !told[reason] {
		return
	}
	select {
	case r.lines <- message:
	default: // Nobody reads lines any more.
	}
}

func (r recorder) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	r.Event(object, eventType, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(
	object runtime.Object, _ map[string]string, eventType, reason, format string, args ...any,
) {
	r.Event(object, eventType, reason, fmt.Sprintf(format, args...))
}

func (r recorder) WithLogger(klog.Logger) record.EventRecorderLogger { return r }
