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

package svmigrator

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// errMigrationGone says that the migration was deleted, or that somebody else ended it.
var errMigrationGone = errors.New("the migration is gone or has ended")

// statusWriter writes the status of one migration. Nobody else writes the status while the migration runs.
type statusWriter struct {
	env *environment
	// stored is the migration as it was last read or written. It must not be changed.
	stored *migrationv1alpha1.StorageVersionMigration
}

// write stores a change of the status. It returns controller.ErrOutdated if somebody has written the migration since it
// was read. It sends no request if the status stays as it is.
func (w *statusWriter) write(ctx context.Context, change statusChange) error {
	m := w.stored.DeepCopy()
	change(&m.Status, w.env.clock.Now())
	if equality.Semantic.DeepEqual(m.Status, w.stored.Status) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rewrite.PatchTimeout)
	defer cancel()
	written, err := w.env.client.StorageVersionMigrations().UpdateStatus(ctx, m,
		metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	switch {
	case err == nil:
		before := w.stored
		w.stored = written
		w.env.recordTransition(ctx, before, written)
		return nil
	case controller.EndsManager(err) != nil: // The queue ends the controller.
	case controller.Refused(err): // This comes first: a webhook may deny with any status code, also 404 and 409.
		// The condition cannot say why, because it was not stored.
		w.env.recordEvent(w.stored, corev1.EventTypeWarning, EventStatusNotWritten,
			"The API server rejected the status of the migration. The migration waits until it can be stored: "+err.Error())
	case controller.MigrationMissing(err, m.Name):
		return errMigrationGone
	case apierrors.IsConflict(err):
		return controller.ErrOutdated
	}
	return fmt.Errorf("writing the status of migration %q: %w", m.Name, err)
}

// refresh reads the migration from the API server.
func (w *statusWriter) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	live, err := w.env.client.StorageVersionMigrations().Get(ctx, w.stored.Name, metav1.GetOptions{})
	switch {
	case controller.MigrationMissing(err, w.stored.Name):
		return errMigrationGone
	case err != nil:
		return fmt.Errorf("getting migration %q: %w", w.stored.Name, err)
	case live.UID != w.stored.UID, !live.Active():
		return errMigrationGone
	}
	// After a restore the objects are as they were, too. So the position of this run must not take the place of that one.
	what := fmt.Sprintf("migration %q", w.stored.Name)
	if err := storageversion.CheckRestored(what, live.ResourceVersion, w.stored.ResourceVersion); err != nil {
		return err
	}
	if w.stored.Status.Target != nil && live.Status.Target == nil {
		return fmt.Errorf("the status of migration %q has lost its target: the CustomResourceDefinition of another program "+
			"may have replaced the one of StorageVersionMigrations", w.stored.Name)
	}
	w.stored = live
	return nil
}

// update stores a change of the status. If somebody has written the migration since it was read, for example an
// annotation, it reads the migration and tries once more.
func (w *statusWriter) update(ctx context.Context, change statusChange) error {
	err := w.write(ctx, change)
	if errors.Is(err, controller.ErrOutdated) {
		if err = w.refresh(ctx); err == nil {
			err = w.write(ctx, change)
		}
	}
	return err
}

// recordTransition writes log entries, metrics and events when a status was stored with which the migration has begun
// or ended.
func (e *environment) recordTransition(ctx context.Context, before, m *migrationv1alpha1.StorageVersionMigration) {
	if !before.Begun() && m.Begun() {
		e.recordStart(ctx, m)
	}
	if !before.Finished() && m.Finished() {
		e.recordEnd(ctx, m)
	}
}

func (e *environment) recordStart(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) {
	status, target := &m.Status, versionOfTarget(m.Status.Target)
	klog.FromContext(ctx).Info("Migration starts", "target", target, "epoch", ptr.Deref(status.Target.Epoch, 0))
	message := "All objects are being rewritten in " + target + "."
	if m.IsConditionTrue(migrationv1alpha1.MigrationWaiting) {
		message = status.Condition(migrationv1alpha1.MigrationWaiting).Message
	}
	e.recordEvent(m, corev1.EventTypeNormal, EventStarted, message)
}

func (e *environment) recordEnd(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) {
	logger, status := klog.FromContext(ctx), &m.Status
	result := status.Condition(migrationv1alpha1.MigrationSucceeded)
	if m.IsConditionTrue(migrationv1alpha1.MigrationFailed) {
		result = status.Condition(migrationv1alpha1.MigrationFailed)
		logger.Info("Migration failed", "reason", result.Reason, "message", result.Message,
			"progress", shown(status.Progress))
		// The message may name objects of any namespace. Events are in the namespace default, which more people may read.
		e.recordEvent(m, corev1.EventTypeWarning, EventFailed,
			result.Reason+": The message of the condition Failed says why, and what to do.")
	} else {
		logger.Info("Migration succeeded", "reason", result.Reason, "progress", shown(status.Progress))
		e.recordEvent(m, corev1.EventTypeNormal, EventSucceeded, result.Message)
	}
	resource := "" // One that never began may name what does not exist. Labels would stay in memory for ever.
	if m.Begun() {
		resource = m.GroupResource().String()
		took := max(0, e.clock.Since(status.StartTime.Time))
		migrationDuration.WithLabelValues(string(result.Type)).Observe(took.Seconds())
	}
	migrations.WithLabelValues(resource, string(result.Type)).Inc()
}

// recordEvent records an event on a migration, and counts it if it is a warning.
func (e *environment) recordEvent(m *migrationv1alpha1.StorageVersionMigration, eventType, reason, message string) {
	if eventType == corev1.EventTypeWarning {
		warnings.WithLabelValues(reason).Inc()
	}
	e.events.Event(m, eventType, reason, migrationv1alpha1.TruncateRunes(message, controller.MaxEventLength))
}
