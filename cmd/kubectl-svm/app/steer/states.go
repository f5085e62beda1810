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

package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

var retry = verb{
	use: "retry RESOURCE...", short: "Try failed migrations again at once",
	long: `Try the failed migrations of resources again at once. Repair the cause first: "kubectl svm denied" names the
objects that were refused, "kubectl svm history -o wide" says why migrations failed.

If the trigger created the last migration, the trigger creates another one without waiting for status.backoff of the
StorageState. The new migration tries only the denied objects if the last one names all of them. If a person created the
last migration, this command creates another one. It tries all objects, because it may be for a new encryption key.`,
	example: `  # The webhook is repaired: try again
  kubectl svm retry widgets.example.com`,
	complete: cli.CompleteResources, run: (*options).retry,
}

var pause = verb{
	use: "pause RESOURCE...", short: "Keep the trigger from creating migrations of resources",
	long: `Keep the trigger from creating migrations of resources. The trigger still observes them. The command sets
spec.paused of their StorageStates. An existing migration continues: "kubectl svm suspend" stops it.`,
	example: `  # Leave the widgets as they are for now
  kubectl svm pause widgets.example.com

  # Let the trigger continue
  kubectl svm resume widgets.example.com`,
	complete: cli.CompleteResources, run: (*options).pause,
}

func (o *options) retry(ctx context.Context, cluster *cli.Cluster) error {
	resources, err := cluster.Catalog.Resolve(o.Names)
	if err != nil {
		return err
	}
	var errs []error
	for _, resource := range resources {
		again := o.retryTrigger
		if all := cluster.MigrationsOf(resource); len(all) > 0 && !all[0].HasEpoch() &&
			all[0].IsConditionTrue(migrationv1alpha1.MigrationFailed) {
			again = o.retryByHand
		}
		errs = append(errs, again(ctx, cluster, resource)) // Whoever names several wants the others to be retried.
	}
	return errors.Join(errs...)
}

// retryTrigger asks the trigger for another attempt, if its last one failed.
func (o *options) retryTrigger(ctx context.Context, cluster *cli.Cluster, resource schema.GroupResource) error {
	state, err := cluster.RequireState(resource)
	if err != nil {
		return err
	}
	all := cluster.MigrationsOf(resource)
	uncounted := !state.Status.Migrated() && len(all) > 0 && all[0].IsConditionTrue(migrationv1alpha1.MigrationFailed) &&
		all[0].Spec.Target.StorageStateUID == state.UID && *all[0].Spec.Target.Epoch == state.Status.Epoch
	nothing := state.Status.Backoff == nil && !uncounted // The trigger may not have counted the failure yet.
	i := slices.IndexFunc(all, func(m migrationv1alpha1.StorageVersionMigration) bool {
		return m.Active()
	})
	kept := slices.IndexFunc(all, func(m migrationv1alpha1.StorageVersionMigration) bool {
		return m.Kept() && assess.IsAttempt(state, &m)
	})
	migrated := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	notSelected := migrated != nil && migrated.Reason == migrationv1alpha1.StateReasonNotSelected
	switch {
	case i < 0 && kept >= 0 && !assess.Paused(state) && !notSelected && !state.Status.Migrated():
		o.Notef("%s: the migration %s is being deleted, and its finalizers keep it. The trigger creates "+
			"another one when they are removed: "+cli.Kubectl+" edit svm %s", state.Name, all[kept].Name, all[kept].Name)
		return nil
	case i >= 0 && (nothing || all[i].HasEpoch()):
		why := fmt.Sprintf("waits or runs, so there is nothing to retry. To follow it: "+cli.SVM+" status %s --watch",
			resource)
		if all[i].Spec.Suspend {
			why = "is suspended, so there is nothing to retry. To continue it: " + cli.SVM + " resume " + all[i].Name
		}
		o.Notef("%s: the migration %s %s", state.Name, all[i].Name, why)
		return nil
	case nothing:
		o.Notef("%s: the last migration has not failed, so there is nothing to retry. "+
			"To migrate it anyway: "+cli.SVM+" migrate %s", state.Name, state.Name)
		return nil
	}
	token := o.Clock.Now().UTC().Format(time.RFC3339Nano)
	if err := o.Clients.PatchState(ctx, resource, fmt.Sprintf(`{"spec":{"retryToken":%q}}`, token)); err != nil {
		return err
	}
	switch {
	case assess.Paused(state):
		o.Notef("%s is paused, so nothing starts: "+cli.SVM+" resume %s", state.Name, state.Name)
	case notSelected:
		o.Notef("--auto-migrate leaves %s out, so nothing starts: "+cli.SVM+" migrate %s", state.Name,
			state.Name)
	}
	fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s retried\n", state.Name)
	o.Notef("To follow it: "+cli.SVM+" status %s --watch", state.Name)
	return nil
}

// retryByHand creates another migration after one that a person created. It tries all objects again, because it may be
// for a new encryption key.
func (o *options) retryByHand(ctx context.Context, _ *cli.Cluster, resource schema.GroupResource) error {
	created, err := o.Clients.CreateMigration(ctx, resource)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "storageversionmigration.migration.k8s.io/%s created\n", created.Name)
	o.Notef("To follow it: "+cli.Kubectl+" get svm %s --watch", created.Name)
	return nil
}

func (o *options) pause(ctx context.Context, cluster *cli.Cluster) error {
	resources, err := cluster.Catalog.Resolve(o.Names)
	if err != nil {
		return err
	}
	var errs []error
	for _, resource := range resources {
		state, err := cluster.RequireState(resource)
		if err == nil {
			err = o.Clients.PatchState(ctx, resource, `{"spec":{"paused":true}}`)
		}
		if err != nil {
			errs = append(errs, err) // Whoever wants to stop all wants the others to be paused.
			continue
		}
		fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s paused\n", state.Name)
		for _, m := range cluster.MigrationsOf(resource) {
			if stoppable(&m) {
				o.Notef("The migration %s continues. To stop it: "+cli.SVM+" suspend %s", m.Name, m.Name)
			}
		}
	}
	if unlisted := o.Unlisted(cluster.Catalog); unlisted != nil {
		errs = append(errs, fmt.Errorf("perhaps not all resources were paused, because %w", unlisted))
	}
	return errors.Join(errs...)
}

// unpause takes back the pause of resources. It goes on after an error.
func (o *options) unpause(
	ctx context.Context, cluster *cli.Cluster, resources []schema.GroupResource,
) (changed bool, err error) {
	var errs []error
	for _, resource := range resources {
		state := cluster.State(resource)
		if state == nil {
			continue
		}
		_, annotated := state.Annotations[migrationv1alpha1.PausedAnnotation]
		if !state.Spec.Paused && !annotated {
			continue
		}
		// null removes the annotation if there is one.
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}},"spec":{"paused":false}}`,
			migrationv1alpha1.PausedAnnotation)
		if err := o.Clients.PatchState(ctx, resource, patch); err != nil {
			errs = append(errs, err)
			continue
		}
		changed = true
		fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s resumed\n", state.Name)
	}
	return changed, errors.Join(errs...)
}
