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

package svmtrigger

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// act performs the effects of a decision in their order. Each depends on the one before. It repeats none of them: the
// next sync decides anew on what is there then.
func (c *Controller) act(ctx context.Context, in Input, d Decision) error {
	if err := c.writeState(ctx, in, d); err != nil {
		return err
	}
	err := c.deleteMigrations(ctx, in, d)
	if err == nil {
		err = c.createMigration(ctx, in, d)
	}
	if controller.Refused(err) || apierrors.IsAlreadyExists(err) {
		c.event(stateForEvents(in), corev1.EventTypeWarning, eventMigrationRefused, controller.Sentence(err.Error()))
	}
	return err
}

// writeState creates, updates or deletes the state, and sends the events when that was stored.
func (c *Controller) writeState(ctx context.Context, in Input, d Decision) error {
	if d.StateAction == KeepState {
		return nil
	}
	resource, state := in.Observation.Resource, in.State
	stored, err := c.storeState(ctx, in, d)
	switch {
	case controller.Refused(err): // This comes first: a webhook may deny with any status code, also 404 and 409.
		message := "The API server refuses to store the StorageState, so its status is out of date: " + err.Error()
		c.event(stateForEvents(in), corev1.EventTypeWarning, eventNotWritten, message)
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), controller.StateMissing(err, resource.String()):
		err = controller.ErrOutdated
	}
	if err != nil {
		return fmt.Errorf("%s of storage state %q: %w", d.StateAction, resource, err)
	}
	if d.StateAction == DeleteState {
		c.memory.ForgetDeleted(resource)
	}
	if stored != nil {
		c.stateWrites.wrote(resource, stored.ResourceVersion)
		state = stored
	}
	verbosity := 2
	if d.Reason == reasonHeartbeat {
		verbosity = 4 // no transition
	}
	klog.FromContext(ctx).V(verbosity).Info("Wrote storage state", "action", d.StateAction, "reason", d.Reason,
		"uid", state.UID, "resourceVersion", state.ResourceVersion, "epoch", state.Status.Epoch,
		"persisted", state.Status.PersistedEncodingVersions)
	for _, event := range d.Events {
		c.event(state, event.Type, event.Reason, event.Message)
	}
	return nil
}

func (c *Controller) event(state *migrationv1alpha1.StorageState, eventType, reason, message string) {
	c.events.Event(state, eventType, reason, migrationv1alpha1.TruncateRunes(message, controller.MaxEventLength))
	if eventType == corev1.EventTypeWarning {
		warnings.WithLabelValues(reason).Inc()
	}
}

// storeState returns what is stored then, nil if nothing is. Every request is preconditioned on the uid and the
// resourceVersion of the state that was decided on.
func (c *Controller) storeState(
	ctx context.Context, in Input, d Decision,
) (*migrationv1alpha1.StorageState, error) {
	states, state := c.client.StorageStates(), in.State
	switch d.StateAction {
	case CreateState:
		return states.Create(ctx, newState(in), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	case UpdateState:
		state = state.DeepCopy()
		state.Status = d.Status
		return states.UpdateStatus(ctx, state, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	case DeleteState:
		err := states.Delete(ctx, state.Name, controller.IfUnchanged(state))
		if controller.StateMissing(err, state.Name) {
			err = nil
		}
		return nil, err
	default:
		return nil, fmt.Errorf("unknown action %q", d.StateAction)
	}
}

// newState returns a state with what people asked for on the one that was deleted, if this manager saw it. Marks of
// other programs do not come back: one that prunes what its source lacks would delete the state again and again.
func newState(in Input) *migrationv1alpha1.StorageState {
	resource := in.Observation.Resource
	state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: resource.String()}}
	if deleted := in.DeletedState; deleted != nil {
		state.Spec, state.Annotations = deleted.Spec, maps.Clone(deleted.Annotations)
		maps.DeleteFunc(state.Annotations, func(key, _ string) bool {
			return key != migrationv1alpha1.PausedAnnotation && key != migrationv1alpha1.RetryAnnotation
		})
	}
	state.Spec.Resource = migrationv1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource}
	return state
}

// stateForEvents returns the state, or the one that a sync would create: events may be about what is not there.
func stateForEvents(in Input) *migrationv1alpha1.StorageState {
	if in.State == nil {
		return newState(in)
	}
	return in.State
}

// maxDeletions is how many migrations one sync deletes. Whoever may create migrations may create thousands that are
// outdated, and one worker decides about all resources.
const maxDeletions = 20

func (c *Controller) deleteMigrations(ctx context.Context, in Input, d Decision) error {
	if in.State == nil && len(d.Delete) > 0 { // What the cache lacks may be there.
		name := in.Observation.Resource.String()
		_, err := c.client.StorageStates().Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			return controller.ErrOutdated
		case !controller.StateMissing(err, name):
			return fmt.Errorf("getting storage state %q: %w", name, err)
		}
	}
	for i, migration := range d.Delete {
		if i == maxDeletions {
			return controller.ErrOutdated // The next sync deletes others.
		}
		// Somebody may suspend it at this moment.
		err := c.client.StorageVersionMigrations().Delete(ctx, migration.Name, controller.IfUnchanged(migration))
		switch {
		case err == nil:
			migrationsDeleted.WithLabelValues(string(d.DeleteReason)).Inc()
			logger := klog.FromContext(ctx)
			if !migration.Begun() {
				logger = logger.V(2) // A rolling upgrade leaves many.
			}
			logger.Info("Deleted migration", "migration", klog.KObj(migration), "uid", migration.UID,
				"reason", d.DeleteReason)
		case controller.MigrationMissing(err, migration.Name), apierrors.IsConflict(err):
			// It is gone, and another one may have its name, or it has changed, and is decided on again.
		default:
			return fmt.Errorf("deleting migration %q: %w", migration.Name, err)
		}
	}
	return nil
}

// createMigration creates a migration if the API server still has what was decided on.
func (c *Controller) createMigration(ctx context.Context, in Input, d Decision) error {
	if d.Create == nil {
		return nil
	}
	if err := c.confirmState(ctx, in.State); err != nil {
		return fmt.Errorf("creating migration %q: %w", d.Create.Name, err)
	}
	created, err := c.client.StorageVersionMigrations().Create(ctx, d.Create,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		holder := c.caches.Migration(d.Create.Name)
		if holder != nil && holder.DeletionTimestamp != nil {
			err = fmt.Errorf("%w. It is being deleted, and finalizers keep it: %q", err, holder.Finalizers)
		} else if holder == nil || holder.GroupResource() == d.Create.GroupResource() && holder.HasEpoch() &&
			*holder.Spec.Target.Epoch == *d.Create.Spec.Target.Epoch &&
			holder.Spec.Target.StorageStateUID == d.Create.Spec.Target.StorageStateUID {
			err = controller.ErrOutdated // The attempt exists already. The next decision finds it in the cache.
		} else {
			err = fmt.Errorf("%w, and the trigger did not create it. Delete it", err)
		}
	}
	if err != nil {
		return fmt.Errorf("creating migration %q: %w", d.Create.Name, err)
	}
	c.migrationWrites.wrote(in.Observation.Resource, created.ResourceVersion)
	migrationsCreated.WithLabelValues().Inc()
	klog.FromContext(ctx).V(2).Info("Created migration", "migration", klog.KObj(created), "uid", created.UID,
		"reason", d.Reason, "target", created.Spec.Target)
	return nil
}

// confirmState reads the state, because a creation has no preconditions:
//
//  1. The cache shows epoch 3, which justifies a migration to v1.
//  2. Another manager recorded epoch 4, in which v2 is current.
//  3. A migration to v1 would be created although the state rules it out, and the migrator could begin it.
//
// The migrator and the next decision would find out. Reading makes that rare, and keeps a former leader from creating
// anything after its successor has written. The name of the migration follows from the state too.
func (c *Controller) confirmState(ctx context.Context, state *migrationv1alpha1.StorageState) error {
	live, err := c.client.StorageStates().Get(ctx, state.Name, metav1.GetOptions{})
	switch {
	case controller.StateMissing(err, state.Name):
		return controller.ErrOutdated
	case err != nil:
		return fmt.Errorf("getting storage state %q: %w", state.Name, err)
	case live.UID != state.UID || live.ResourceVersion != state.ResourceVersion:
		return controller.ErrOutdated
	}
	return nil
}
