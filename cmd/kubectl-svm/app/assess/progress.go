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

package assess

import (
	"fmt"
	"strings"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// barWidth is how many characters a bar has inside its brackets.
const barWidth = 10

// percentStep is from one line about the progress of a migration to the next, where there is no terminal.
const percentStep = 10

// Outline has what deserves a line of its own when it changes. A terminal shows the progress in place.
func (m *Migration) Outline(interactive bool) string {
	text := fmt.Sprint(m.State, m.Reason, m.Denied)
	if m.State == migrationv1alpha1.MigrationRunning && m.PercentComplete != nil && !interactive {
		text += fmt.Sprint(*m.PercentComplete / percentStep)
	}
	if m.Waits() {
		text += m.Message
	}
	return text
}

// Waits reports whether the migration waits for something other than its turn. That may need a person if it lasts.
func (m *Migration) Waits() bool {
	return m != nil && m.State == migrationv1alpha1.MigrationWaiting && m.Reason != migrationv1alpha1.MigrationReasonQueued
}

// News is Progress, and what is wrong if requests fail.
func (m *Migration) News(now time.Time) string {
	news := m.Progress(now)
	if news != "" && m.Failing() {
		news += ": " + m.Message
	}
	return news
}

// Progress is how far the migration is, in one line: a bar, a rate and the end. It is empty if it does not run, or if
// there is none.
func (m *Migration) Progress(now time.Time) string {
	if m == nil || m.State != migrationv1alpha1.MigrationRunning {
		return ""
	}
	var parts []string
	switch {
	case m.PercentComplete != nil && m.EstimatedTotal != nil:
		parts = append(parts, fmt.Sprintf("%s %d%% of %s", bar(*m.PercentComplete), *m.PercentComplete,
			FormatObjects(*m.EstimatedTotal)))
	case m.Processed > 0:
		parts = append(parts, FormatObjects(m.Processed)+" done")
	default:
		parts = append(parts, "running")
	}
	if m.ObjectsPerMinute != nil && *m.ObjectsPerMinute > 0 {
		parts = append(parts, FormatNumber(*m.ObjectsPerMinute)+"/min")
	}
	if m.EstimatedCompletionTime != nil {
		parts = append(parts, "ends "+FormatUntil(now, m.EstimatedCompletionTime.Time))
	}
	if m.Denied > 0 {
		parts = append(parts, fmt.Sprintf("%s denied", FormatNumber(m.Denied)))
	}
	if m.Reason != migrationv1alpha1.MigrationReasonRewriting {
		parts = append(parts, m.Reason)
	}
	return strings.Join(parts, ", ")
}

// bar draws a percentage.
func bar(percent int32) string {
	full := min(barWidth, max(0, int(percent))*barWidth/100)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
}
