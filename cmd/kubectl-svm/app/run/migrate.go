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
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-api/client/informers/externalversions"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

// lookInterval is how often the command looks at its migrations.
const lookInterval = 500 * time.Millisecond

// errNotSaved is why a run ends whose progress cannot be saved any more.
var errNotSaved = errors.New("the run has ended, because --resume relies on that file")

// checkManager returns an error if a manager leads that migrates.
func (o *Options) checkManager(ctx context.Context) error {
	if o.BesideManager {
		return nil
	}
	if o.ManagerLease.Name == "" {
		return errors.New("without a lease nobody knows whether a manager runs. If none does, use --beside-manager")
	}
	manager := assess.FindManager(ctx, o.Env, o.Clients, o.ManagerLease, nil)
	if manager.Help != "" {
		return fmt.Errorf("%s Or use --beside-manager", manager.Message)
	}
	if manager.Migrates() {
		return fmt.Errorf("a manager migrates by itself: %s Use %s migrate, or --beside-manager", manager.Message, cli.SVM)
	}
	return nil
}

// migrate runs the migrator until all migrations have ended or the context ends. It returns the migrations as they are
// then, also if they could not be saved. The migrations are saved in files at each step.
func (o *Options) migrate(
	ctx context.Context, migrations []*migrationv1alpha1.StorageVersionMigration,
) ([]migrationv1alpha1.StorageVersionMigration, error) {
	// The conditions of the migrations say all that the log does.
	running, stop := context.WithCancelCause(klog.NewContext(ctx, logr.Discard()))
	defer stop(nil)
	stored := newStore(o.saver(stop))
	for _, m := range migrations {
		stored.add(m)
	}
	watching, err := observer.New(o.Clients.Config, observer.Options{Restored: func(err error, _ time.Time) {
		if !errors.Is(err, storageversion.ErrEarlier) {
			stop(err)
		}
	}})
	if err != nil {
		return nil, err
	}
	factory := externalversions.NewSharedInformerFactory(stored, 0)
	clients := svmigrator.Clients{
		Migrations: stored.MigrationV1alpha1(), Documents: o.Clients.Discovery.RESTClient(), Objects: o.Clients.Config,
	}
	migrator, err := svmigrator.New(running, clients, factory.Migration().V1alpha1(), watching, recorder{env: o.Env},
		o.Migrator)
	if err != nil {
		return nil, err
	}
	factory.StartWithContext(running)
	var parts sync.WaitGroup
	parts.Go(func() { watching.Run(running) })
	parts.Go(func() {
		if err := migrator.Run(running); err != nil {
			stop(err)
		}
	})
	o.follow(running, stored)
	stop(nil)
	parts.Wait()
	factory.Shutdown()
	ended := stored.all()
	if cause := context.Cause(running); errors.Is(cause, storageversion.ErrRestored) {
		return nil, errors.Join(o.removeFiles(ended),
			fmt.Errorf("%w. Rewrites may be undone: the saved progress is deleted, and the next run starts over", cause))
	}
	o.stampEnded(ctx, ended)
	// A file may be older than the last step of a run that was interrupted.
	for i := range ended {
		err = cmp.Or(stored.save(&ended[i]), err)
	}
	if cause := context.Cause(running); errors.Is(cause, errNotSaved) {
		err = cause
	}
	return ended, err
}

// saver returns what saves a migration. It stops the run if that fails: the migrator would try again without end, and
// nobody would see why.
func (o *Options) saver(stop context.CancelCauseFunc) func(*migrationv1alpha1.StorageVersionMigration) error {
	return func(m *migrationv1alpha1.StorageVersionMigration) error {
		err := files{o.StateDir}.save(m)
		if err != nil {
			err = fmt.Errorf("%w\nSo %w. Make room in --state-dir, or make it writable", err, errNotSaved)
			stop(err)
		}
		return err
	}
}

// removeFiles removes the files of migrations.
func (o *Options) removeFiles(migrations []migrationv1alpha1.StorageVersionMigration) error {
	var errs []error
	for i := range migrations {
		errs = append(errs, files{o.StateDir}.remove(migrations[i].GroupResource()))
	}
	return errors.Join(errs...)
}

// follow prints what happens until all migrations have ended.
func (o *Options) follow(ctx context.Context, stored *store) {
	report := &reporter{Env: o.Env}
	defer o.Overwrite("")
	ticker := o.Clock.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		all := stored.all()
		i := slices.IndexFunc(all, func(m migrationv1alpha1.StorageVersionMigration) bool {
			return m.IsConditionTrue(migrationv1alpha1.MigrationRunning)
		})
		if i < 0 {
			i = slices.IndexFunc(all, func(m migrationv1alpha1.StorageVersionMigration) bool { return !m.Finished() })
		}
		if i < 0 {
			return
		}
		report.report(&all[i])
	}
}

// conclude prints how each migration has ended.
func (o *Options) conclude(ctx context.Context, ended []migrationv1alpha1.StorageVersionMigration) error {
	unfinished, open := o.printEnded(ended)
	switch {
	case unfinished && cli.TimedOut(ctx):
		return cli.Timeout("--timeout has passed. %s", toContinue(ended, open))
	case unfinished:
		return fmt.Errorf("interrupted. %s", toContinue(ended, open))
	case len(open) > 0:
		return cli.NotSafe()
	}
	return nil
}

// toContinue tells how to go on with the migrations that have not succeeded.
func toContinue(ended []migrationv1alpha1.StorageVersionMigration, open []string) string {
	const resume = "To continue, run the same command with --resume"
	if len(open) == len(ended) {
		return resume
	}
	return resume + ", and name only what has not succeeded: " + strings.Join(open, " ")
}

// printEnded prints how migrations have ended. It returns whether others have not, and the resources whose migration
// has not succeeded.
func (o *Options) printEnded(ended []migrationv1alpha1.StorageVersionMigration) (unfinished bool, open []string) {
	for i := range ended {
		m := &ended[i]
		state, resource := cli.CurrentCondition(m), m.GroupResource().String()
		if !m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) {
			open = append(open, resource)
		}
		if !m.Finished() {
			unfinished = true
			continue
		}
		colour := cli.Green
		if state.Type == migrationv1alpha1.MigrationFailed {
			colour = cli.Red
		}
		text := fmt.Sprintf("%s: %s", resource, outcome(state))
		if p := m.Status.Progress; p != nil {
			text += fmt.Sprintf(" (%s: %d rewritten, %d already current, %d written by others, %d gone, %d denied)",
				assess.FormatObjects(p.Processed), p.Rewritten, p.AlreadyCurrent, p.WrittenByOthers, p.Gone, p.Denied)
		}
		fmt.Fprintln(o.Out, o.Paint(colour, text))
		o.printDenied(m.Status.DeniedObjects)
	}
	return unfinished, open
}

// outcome is the message of how a migration has ended. A run has no status that lists what was denied.
func outcome(ended migrationv1alpha1.MigrationCondition) string {
	if ended.Reason != migrationv1alpha1.MigrationReasonObjectsDenied {
		return ended.Message
	}
	return fmt.Sprintf("some objects were not rewritten: the API server or this command denied it, or every try failed. "+
		"All other objects are done. Up to %d denied objects are listed below, each with the reason. Fix the objects, or "+
		"the webhook or policy that denies them, then run the command again", migrationv1alpha1.MaxDeniedObjects)
}

// printDenied prints the objects that the API server refuses to rewrite.
func (o *Options) printDenied(denied []migrationv1alpha1.DeniedObject) {
	if len(denied) == 0 {
		return
	}
	columns := []cli.Column{{Name: "Namespace"}, {Name: "Name"}, {Name: "Reason"}, {Name: "Message"}}
	var rows []cli.Row
	for _, d := range denied {
		rows = append(rows, cli.Row{Cells: []any{d.Namespace, d.Name, string(d.Reason), d.Message}})
	}
	o.Output.PrintTable(o.Env, columns, rows)
}
