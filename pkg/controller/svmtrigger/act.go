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
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	// How the API server calls the things that it does not find.
	stateResource     = "storagestates"
	migrationResource = "storageversionmigrations"

	stateKind = "StorageState"
)

// errOutdated says that the decision was made on something that has changed. Nothing is wrong: the next one is made anew.
var errOutdated = errors.New("what was decided on has changed")

// act performs the effects of a decision in their order. Each depends on the one before, and none is repeated here: the
// next sync decides anew on what is then there.
func (c *Controller) act(ctx context.Context, in Input, d Decision) error {
	for _, effect := range []func(context.Context, Input, Decision) error{
		c.confirmGone,
		c.writeState,
		c.deleteMigrations,
		c.createMigration,
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := effect(ctx, in, d); err != nil {
			return err
		}
	}
	return nil
}

// confirmGone asks the API server, because a cache that is behind looks the same as a migration that was deleted.
func (c *Controller) confirmGone(ctx context.Context, _ Input, d Decision) error {
	if d.ConfirmGone == "" {
		return nil
	}
	_, err := c.client.StorageVersionMigrations().Get(ctx, d.ConfirmGone, metav1.GetOptions{})
	switch {
	case err == nil:
		return fmt.Errorf("migration %q is there, but not in the cache yet: %w", d.ConfirmGone, errOutdated)
	case saysMissing(err, migrationResource, d.ConfirmGone):
		return nil
	default:
		return fmt.Errorf("getting migration %q: %w", d.ConfirmGone, err)
	}
}

// writeState does what is to be done with the state, remembers that, and then tells the events.
func (c *Controller) writeState(ctx context.Context, in Input, d Decision) error {
	if d.State == KeepState {
		return nil
	}
	resource := in.Observation.Resource
	var (
		stored *migrationv1alpha1.StorageState
		err    error
	)
	switch d.State {
	case CreateState:
		stored, err = c.createState(ctx, newState(resource, metav1.ObjectMeta{}))
	case UpdateState:
		stored, err = c.updateState(ctx, in.State, d.Status)
	case DeleteState:
		err = c.deleteState(ctx, resource, in.State)
	case RecreateState:
		if err = c.deleteState(ctx, resource, in.State); err == nil {
			stored, err = c.createState(ctx, newState(resource, in.State.ObjectMeta))
		}
	default:
		err = fmt.Errorf("unknown action %q", d.State)
	}
	if err != nil {
		return fmt.Errorf("%s of storage state %q: %w", d.State, resource, err)
	}
	about := in.State
	if stored != nil {
		c.own.stored(resource, stored)
		about = stored
	}
	verbosity := 2
	if d.Reason == reasonHeartbeat {
		verbosity = 4 // no transition
	}
	klog.FromContext(ctx).V(verbosity).Info("Wrote storage state", "action", d.State, "reason", d.Reason, "uid", about.UID, "resourceVersion", about.ResourceVersion,
		"epoch", about.Status.Epoch, "persisted", about.Status.PersistedEncodingVersions)
	c.tell(about, d.Events)
	return nil
}

// newState takes over what people wrote on the state that it replaces, if there is one.
func newState(resource schema.GroupResource, replaced metav1.ObjectMeta) *migrationv1alpha1.StorageState {
	return &migrationv1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: resource.String(), Annotations: replaced.Annotations, Labels: replaced.Labels},
		Spec: migrationv1alpha1.StorageStateSpec{
			Resource: migrationv1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource},
		},
	}
}

func (c *Controller) createState(ctx context.Context, state *migrationv1alpha1.StorageState) (*migrationv1alpha1.StorageState, error) {
	stored, err := c.client.StorageStates().Create(ctx, state, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, errOutdated
	}
	return stored, err
}

// updateState is preconditioned by the uid and the resourceVersion that the object carries.
func (c *Controller) updateState(ctx context.Context, state *migrationv1alpha1.StorageState, status migrationv1alpha1.StorageStateStatus) (*migrationv1alpha1.StorageState, error) {
	state = state.DeepCopy()
	state.Status = status
	stored, err := c.client.StorageStates().UpdateStatus(ctx, state, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || saysMissing(err, stateResource, state.Name) {
		return nil, errOutdated
	}
	return stored, err
}

func (c *Controller) deleteState(ctx context.Context, resource schema.GroupResource, state *migrationv1alpha1.StorageState) error {
	err := c.client.StorageStates().Delete(ctx, state.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &state.UID, ResourceVersion: &state.ResourceVersion},
	})
	switch {
	case err == nil || saysMissing(err, stateResource, state.Name):
		c.own.deleted(resource, state)
		return nil
	case apierrors.IsConflict(err):
		return errOutdated
	default:
		return err
	}
}

func (c *Controller) deleteMigrations(ctx context.Context, _ Input, d Decision) error {
	for _, migration := range d.Delete {
		err := c.client.StorageVersionMigrations().Delete(ctx, migration.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &migration.UID},
		})
		switch {
		case err == nil:
			migrationsDeleted.WithLabelValues(string(d.Reason)).Inc()
			klog.FromContext(ctx).V(2).Info("Deleted migration", "migration", klog.KObj(migration), "uid", migration.UID, "reason", d.Reason)
		case saysMissing(err, migrationResource, migration.Name), apierrors.IsConflict(err):
			// It is gone, and possibly another one has its name.
		default:
			return fmt.Errorf("deleting migration %q: %w", migration.Name, err)
		}
	}
	return nil
}

// createMigration reads the state first, because a creation has no preconditions:
//
//  1. The cache shows epoch 3, which justifies a migration to v1.
//  2. Another writer recorded epoch 4 already, in which v2 is current.
//  3. A migration to v1 would be created after the state that it is out of date in, and be taken up.
//
// The migrator and the next decision would find out. The reading makes it rare, and keeps a former leader from creating
// anything after its successor has written.
func (c *Controller) createMigration(ctx context.Context, in Input, d Decision) error {
	if d.Create == nil {
		return nil
	}
	state, err := c.client.StorageStates().Get(ctx, in.State.Name, metav1.GetOptions{})
	if err != nil && !saysMissing(err, stateResource, in.State.Name) {
		return fmt.Errorf("getting storage state %q: %w", in.State.Name, err)
	}
	if err != nil || state.UID != in.State.UID || state.ResourceVersion != in.State.ResourceVersion {
		return fmt.Errorf("creating migration %q: %w", d.Create.Name, errOutdated)
	}
	created, err := c.client.StorageVersionMigrations().Create(ctx, d.Create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return c.checkTarget(ctx, d.Create)
	}
	if err != nil {
		return fmt.Errorf("creating migration %q: %w", d.Create.Name, err)
	}
	migrationsCreated.WithLabelValues(string(d.Reason)).Inc()
	klog.FromContext(ctx).V(2).Info("Created migration", "migration", klog.KObj(created), "uid", created.UID, "reason", d.Reason, "target", created.Spec.Target)
	return nil
}

// checkTarget returns nil if the migration that exists is the one that is wanted: it was created before a crash, or the
// cache does not show it yet.
func (c *Controller) checkTarget(ctx context.Context, wanted *migrationv1alpha1.StorageVersionMigration) error {
	existing, err := c.client.StorageVersionMigrations().Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case saysMissing(err, migrationResource, wanted.Name):
		return fmt.Errorf("migration %q went: %w", wanted.Name, errOutdated)
	case err != nil:
		return fmt.Errorf("getting migration %q: %w", wanted.Name, err)
	case !apiequality.Semantic.DeepEqual(existing.Spec.Target, wanted.Spec.Target):
		return fmt.Errorf("migration %q exists, with another target than the one that is due (%+v, not %+v): delete it, unless somebody needs it under that name",
			wanted.Name, ptr.Deref(existing.Spec.Target, migrationv1alpha1.MigrationTarget{}), ptr.Deref(wanted.Spec.Target, migrationv1alpha1.MigrationTarget{}))
	default:
		return nil
	}
}

// tell records events on the state. They are told once, after what they tell of was stored: a write that fails is
// decided on again, and its events with it.
func (c *Controller) tell(state *migrationv1alpha1.StorageState, events []Event) {
	// A reference, because the objects of a typed client do not say their kind and the recorder does not know them.
	about := &corev1.ObjectReference{
		APIVersion:      migrationv1alpha1.SchemeGroupVersion.String(),
		Kind:            stateKind,
		Name:            state.Name,
		UID:             state.UID,
		ResourceVersion: state.ResourceVersion,
	}
	for _, event := range events {
		eventType := corev1.EventTypeNormal
		if event.Warning {
			eventType = corev1.EventTypeWarning
		}
		c.events.Event(about, eventType, event.Reason, event.Message)
	}
}
