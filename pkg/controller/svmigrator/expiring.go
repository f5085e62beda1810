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
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	// The objects are listed minExpiryInterval after the migration began, and then less and less often.
	minExpiryInterval = 15 * time.Second
	maxExpiryInterval = 10 * time.Minute
)

// ObjectsExpire returns the decision to wait for a migration of objects that expire.
func ObjectsExpire() Decision {
	return waitDecision(migrationv1alpha1.MigrationReasonObjectsExpire,
		"the objects are not rewritten, because that would prolong their life. The migration ends when all objects that "+
			"were written before it began have expired. The flag --event-ttl of the API servers says how long that takes")
}

// tryExpired ends the migration if no object is left that was written before it began. It rewrites no objects. It does
// not rely on the time to live, because etcd starts it anew when it elects a leader. So it lists the objects, and
// compares resource versions.
func (r *migrationRun) tryExpired(ctx context.Context) error {
	r.task.Begin(r.env.clock.Now())
	status := &r.status.stored.Status
	older, listed, err := r.env.engine.WrittenBefore(ctx, r.served, status.BaselineResourceVersion)
	if err != nil {
		return err
	}
	if status.BaselineResourceVersion == "" {
		err := r.status.update(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus, _ time.Time) {
			status.BaselineResourceVersion = listed
		})
		if err != nil {
			return err
		}
	}
	if !older {
		return r.finish(ctx)
	}
	interval := r.env.clock.Since(status.StartTime.Time) / 4
	return r.postpone(ctx, min(max(interval, minExpiryInterval), maxExpiryInterval), ObjectsExpire())
}
