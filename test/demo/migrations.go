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

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	// progressStep is after how many percent the demo prints the next line about a migration.
	progressStep = 15
	// killAt is at how many percent the demo kills the leader.
	killAt = 30
)

// awaitMigration waits for the next migration that the trigger creates for crontabs.
func (d *demo) awaitMigration(ctx context.Context) (*migrationv1alpha1.StorageVersionMigration, error) {
	var name string
	err := d.untilState(ctx, "a migration was created", func(state *migrationv1alpha1.StorageState) bool {
		made := state.Status.Migration
		if made == nil || made.UID == "" || made.Name == d.attempt {
			return false
		}
		name = made.Name
		return true
	})
	if err != nil {
		return nil, err
	}
	d.attempt = name
	return d.getMigration(ctx)
}

func (d *demo) getMigration(ctx context.Context) (*migrationv1alpha1.StorageVersionMigration, error) {
	m, err := d.migration.MigrationV1alpha1().StorageVersionMigrations().Get(ctx, d.attempt, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting migration %q: %w", d.attempt, err)
	}
	return m, nil
}

// follow prints the progress of the latest migration until it ends. It calls inTheMiddle once, unless that is nil.
func (d *demo) follow(
	ctx context.Context, inTheMiddle func(ctx context.Context, processed int64) error,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	next := int32(0)
	for {
		var m *migrationv1alpha1.StorageVersionMigration
		err := d.until(ctx, "migration "+d.attempt+" makes progress", func(ctx context.Context) (done bool, err error) {
			if m, err = d.getMigration(ctx); err != nil {
				return false, err
			}
			return ended(m) != nil || percent(m) >= next, nil
		})
		if err != nil {
			return nil, err
		}
		if end := ended(m); end != nil {
			d.showEnd(m, end)
			return m, nil
		}
		d.showProgress(m)
		done := percent(m)
		next = min(done-done%progressStep+progressStep, 100)
		if done == 100 {
			next = 101 // only the end is to come
		}
		if done >= killAt && inTheMiddle != nil {
			if err := inTheMiddle(ctx, m.Status.Progress.Processed); err != nil {
				return nil, err
			}
			inTheMiddle = nil
			next = done + 1
		}
	}
}

// ended returns the condition that ended the migration, or nil if it has not ended.
func ended(m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.MigrationCondition {
	for i := range m.Status.Conditions {
		condition := &m.Status.Conditions[i]
		last := condition.Type == migrationv1alpha1.MigrationSucceeded || condition.Type == migrationv1alpha1.MigrationFailed
		if last && condition.Status == corev1.ConditionTrue {
			return condition
		}
	}
	return nil
}

func percent(m *migrationv1alpha1.StorageVersionMigration) int32 {
	if m.Status.Progress == nil || m.Status.Progress.PercentComplete == nil {
		return 0
	}
	return *m.Status.Progress.PercentComplete
}

func (d *demo) showProgress(m *migrationv1alpha1.StorageVersionMigration) {
	p := m.Status.Progress
	if p == nil {
		return
	}
	line := fmt.Sprintf("%3d %%, %s", percent(m), number(p.Processed))
	if p.EstimatedTotal != nil {
		line += " of " + number(*p.EstimatedTotal)
	}
	line += " objects"
	if p.ObjectsPerMinute != nil {
		line += fmt.Sprintf(", %s a minute", number(*p.ObjectsPerMinute))
	}
	d.out.saw("%s", line)
}

func (d *demo) showEnd(m *migrationv1alpha1.StorageVersionMigration, end *migrationv1alpha1.MigrationCondition) {
	tell := d.out.saw
	if end.Type == migrationv1alpha1.MigrationFailed {
		tell = d.out.warn
	}
	tell("%s: %s", end.Type, end.Reason)
	if p := m.Status.Progress; p != nil {
		d.out.quote(fmt.Sprintf("rewritten %s, already current %s, written by others %s, gone %s, denied %s",
			number(p.Rewritten), number(p.AlreadyCurrent), number(p.WrittenByOthers), number(p.Gone), number(p.Denied)))
	}
}

// mustEnd returns an error if the migration did not end as expected.
func mustEnd(
	m *migrationv1alpha1.StorageVersionMigration, as migrationv1alpha1.MigrationConditionType, reason string,
) error {
	if end := ended(m); end.Type != as || end.Reason != reason {
		return fmt.Errorf("migration %q is %s because of %s, want %s because of %s: %s",
			m.Name, end.Type, end.Reason, as, reason, end.Message)
	}
	return nil
}

// refused returns the message with which the API server refused a request.
func refused(err error) (string, error) {
	if apierrors.IsInvalid(err) {
		return err.Error(), nil
	}
	if err == nil {
		return "", fmt.Errorf("the API server accepted a request that it should refuse")
	}
	return "", err
}
