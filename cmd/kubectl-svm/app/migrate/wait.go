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

package migrate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/printers"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	// lookInterval is how often --wait looks at what has changed.
	lookInterval = time.Second
	// percentStep is from one line about the progress to the next, where there is no terminal.
	percentStep = 10
)

// waiting is the state of --wait.
type waiting struct {
	*Options
	// reported has the outline of the last line that was printed about each migration.
	reported map[string]string
	// failed are migrations that failed, and left the names of those that have not ended.
	failed []*migrationv1alpha1.StorageVersionMigration
	left   []string
}

// wait waits until the migrations have ended.
func (o *Options) wait(
	ctx context.Context, cluster *cli.Cluster, created []migrationv1alpha1.StorageVersionMigration,
) error {
	watched, err := o.Clients.Watch(ctx, cluster)
	if err != nil {
		return err
	}
	deadline := o.Clock.Now().Add(o.Timeout)
	w := &waiting{Options: o, reported: map[string]string{}}
	for {
		select {
		case <-ctx.Done():
			o.Overwrite("")
			return fmt.Errorf("%w: the migrations continue without this command: %s", ctx.Err(), strings.Join(w.left, ", "))
		case <-o.Clock.After(lookInterval):
		}
		watched.Update(cluster)
		if err := w.look(cluster, created); err != nil {
			return err
		}
		if len(w.left) == 0 {
			break
		}
		if o.Timeout > 0 && !o.Clock.Now().Before(deadline) {
			o.Overwrite("")
			return cli.Timeout("timed out after %v. These migrations continue: %s", o.Timeout, strings.Join(w.left, ", "))
		}
	}
	o.Overwrite("")
	if len(w.failed) > 0 {
		fmt.Fprintf(o.ErrOut, "%d of %d migrations failed.\n", len(w.failed), len(created))
		for _, m := range w.failed {
			fmt.Fprintf(o.ErrOut, "  %s: %s\n", m.Name, assess.AfterFailure(m))
		}
		return cli.NotSafe()
	}
	return nil
}

// look records how far the migrations are, and prints what has changed.
func (w *waiting) look(cluster *cli.Cluster, created []migrationv1alpha1.StorageVersionMigration) error {
	w.failed, w.left = nil, nil
	var running []string
	for i := range created {
		m := cluster.Migration(created[i].Name)
		if m == nil || m.UID != created[i].UID {
			if w.reported[created[i].Name] == "" { // The watch has not brought it yet.
				w.left = append(w.left, created[i].Name)
				continue
			}
			w.Overwrite("")
			return fmt.Errorf("the migration %s was deleted before it ended", created[i].Name)
		}
		switch {
		case m.HasCondition(migrationv1alpha1.MigrationFailed):
			w.failed = append(w.failed, m)
		case !m.Finished():
			w.left = append(w.left, m.Name)
		}
		progress := w.report(m)
		if progress != "" {
			running = append(running, m.Name+" "+progress)
		}
	}
	w.Overwrite(strings.Join(running, "; "))
	return nil
}

// report prints a line if something has changed, and returns how far the migration is.
func (w *waiting) report(m *migrationv1alpha1.StorageVersionMigration) (progress string) {
	described, now := assess.Describe(m), w.Clock.Now()
	outline := fmt.Sprint(described.State, described.Reason, described.Denied)
	progress = described.Progress(now)
	if percent := described.PercentComplete; percent != nil && progress != "" && !w.Interactive {
		outline += fmt.Sprint(*percent / percentStep)
	}
	if w.reported[m.Name] == outline {
		return progress
	}
	w.reported[m.Name] = outline
	news := progress
	if news == "" {
		message := printers.EscapeTerminal(described.Message) // It may quote a webhook.
		news = strings.TrimSpace(fmt.Sprintf("%s %s %s", described.State, described.Reason, message))
	}
	w.Notef("%s %s: %s", now.Format(time.TimeOnly), m.Name, news)
	return progress
}
