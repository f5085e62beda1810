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
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// waiting is the state of --wait.
type waiting struct {
	*Options
	// reported has the outline of the last line that was printed about each migration.
	reported map[string]string
	// ended are migrations that have ended. They count even if somebody deletes them while others run.
	ended map[string]*migrationv1alpha1.StorageVersionMigration
	// failed are migrations that failed, and left the names of those that have not ended.
	failed []*migrationv1alpha1.StorageVersionMigration
	left   []string
}

func newWaiting(o *Options) *waiting {
	return &waiting{
		Options: o, reported: map[string]string{}, ended: map[string]*migrationv1alpha1.StorageVersionMigration{},
	}
}

// wait waits until the migrations have ended. It replaces each by what it has seen last of it.
func (o *Options) wait(
	ctx context.Context, cluster *cli.Cluster, created []migrationv1alpha1.StorageVersionMigration,
) error {
	watched, err := o.Clients.WatchMigrations(ctx, cluster)
	if err != nil {
		return err
	}
	w := newWaiting(o)
	for i := range created {
		w.left = append(w.left, created[i].Name)
	}
	err = o.Follow(ctx, func() (done bool, err error) {
		watched.Update(cluster)
		err = w.look(ctx, cluster, created)
		return len(w.left) == 0, err
	})
	switch {
	case cli.TimedOut(ctx) && err != nil:
		return cli.Timeout("timed out after %v. These migrations continue: %s.%s", o.Timeout, strings.Join(w.left, ", "),
			cli.UnreadSince(err))
	case ctx.Err() != nil && err != nil:
		return &cli.Exit{Code: cli.ExitError, Err: fmt.Errorf("interrupted. These migrations continue: %s",
			strings.Join(w.left, ", "))}
	case cli.Refused(err):
		return fmt.Errorf("%w\nThese migrations continue: %s.%s", err, strings.Join(w.left, ", "), cli.UnreadSince(err))
	case err != nil:
		return err
	}
	if len(w.failed) > 0 {
		o.Notef("%d of %d migrations failed.", len(w.failed), len(created))
		for _, m := range w.failed {
			o.Notef("  %s: %s", m.Name, assess.AfterFailure(m))
		}
		return cli.NotSafe()
	}
	return nil
}

// look records how far the migrations are, and prints what has changed.
func (w *waiting) look(
	ctx context.Context, cluster *cli.Cluster, created []migrationv1alpha1.StorageVersionMigration,
) error {
	w.failed, w.left = nil, nil
	var running []string
	for i := range created {
		m := w.find(cluster, &created[i])
		switch {
		case m == nil && w.mayCome(ctx, &created[i]):
			w.left = append(w.left, created[i].Name)
			continue
		case m == nil:
			return fmt.Errorf("the migration %s was deleted, and the command did not see it end", created[i].Name)
		case m.Kept():
			return fmt.Errorf("the migration %s was deleted before it had ended; its finalizers keep it, and nobody runs it",
				m.Name)
		case m.IsConditionTrue(migrationv1alpha1.MigrationFailed):
			w.failed = append(w.failed, m)
		case !m.Finished():
			w.left = append(w.left, m.Name)
		}
		if m.Finished() {
			w.ended[m.Name] = m
		}
		created[i] = *m
		progress := w.report(m)
		if progress != "" {
			running = append(running, m.Name+" "+progress)
		}
	}
	w.Overwrite(strings.Join(running, "; "))
	return nil
}

// find returns a migration as it is now, or as it ended. It returns nil if the watch does not have it.
func (w *waiting) find(
	cluster *cli.Cluster, created *migrationv1alpha1.StorageVersionMigration,
) *migrationv1alpha1.StorageVersionMigration {
	if ended := w.ended[created.Name]; ended != nil {
		return ended
	}
	if m := cluster.Migration(created.Name); m != nil && m.UID == created.UID {
		return m
	}
	return nil
}

// mayCome reports whether the watch may still bring a migration. It asks the API server about one that the watch has
// never brought, because somebody may have deleted it before the watch began.
func (w *waiting) mayCome(ctx context.Context, created *migrationv1alpha1.StorageVersionMigration) bool {
	if w.reported[created.Name] != "" {
		return false
	}
	// People who migrate may list migrations, and maybe not get one.
	list, err := w.Clients.Migration.StorageVersionMigrations().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, created.Name).String(),
	})
	return err != nil || // It does not say that the migration is gone.
		slices.ContainsFunc(list.Items, func(m migrationv1alpha1.StorageVersionMigration) bool {
			return m.UID == created.UID
		})
}

// report prints a line if something has changed, and returns how far the migration is.
func (w *waiting) report(m *migrationv1alpha1.StorageVersionMigration) (progress string) {
	described, now := assess.Describe(m), w.Clock.Now()
	progress = described.Progress(now)
	outline := described.Outline(w.Interactive)
	if w.reported[m.Name] == outline {
		return progress
	}
	w.reported[m.Name] = outline
	news := described.News(now)
	if news == "" {
		news = strings.TrimSpace(fmt.Sprintf("%s %s %s", described.State, described.Reason, described.Message))
	}
	w.Notef("%s %s: %s", now.Format(time.TimeOnly), m.Name, news)
	return progress
}
