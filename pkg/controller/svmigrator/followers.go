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
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// followRetry is how often a server is asked that does not follow a definition yet.
const followRetry = 10 * time.Second

// errLags is what is wrong with a server that does not follow a CustomResourceDefinition yet.
var errLags = errors.New("it does not follow the CustomResourceDefinition yet")

// waiting ends the run of a migration that must not start before some time.
type waiting struct{ until time.Time }

func (w *waiting) Error() string { return "waiting until " + w.until.Format(time.RFC3339) }

// everyServerFollows asks each server at its own address whether it writes the target. A server hears of a change of a
// CustomResourceDefinition by a watch, which may be late by any time. The error is errLags if a server writes something
// else, and names the server.
func (r *migrationRun) everyServerFollows(ctx context.Context, target *migrationv1alpha1.MigrationTarget) error {
	if r.class != storageversion.Custom {
		return nil
	}
	served := r.cluster.observer.Observe(r.resource).Served
	tells := slices.ContainsFunc(served, func(version string) bool {
		return r.resource.WithVersion(version).GroupVersion().String() == target.EncodingVersion
	})
	return r.cluster.observer.AskEach(ctx, func(ctx context.Context, server documents.Reader) error {
		hash, err := r.hashAt(ctx, server)
		switch {
		case err != nil:
			return err
		case hash == "" && tells:
			return errors.New("it does not say what it writes")
		case hash != "" && hash != target.StorageVersionHash:
			return errLags
		}
		return nil
	})
}

// hashAt returns what a server says that it writes. It is empty if the storage version is not served.
func (r *migrationRun) hashAt(ctx context.Context, server documents.Reader) (string, error) {
	versions, err := server.Versions(ctx, r.resource.Group)
	if err != nil {
		return "", err
	}
	for _, version := range versions {
		list, err := server.Resources(ctx, schema.GroupVersion{Group: r.resource.Group, Version: version})
		if err != nil && !documents.NotServed(err) {
			return "", err
		}
		for _, one := range list.APIResources {
			if one.Name == r.resource.Resource {
				return one.StorageVersionHash, nil // It is the same at every version.
			}
		}
	}
	return "", nil
}

// awaitFollowers returns an error while a migration must not start because of a server that lags behind. When all
// servers follow, writes that such a server accepted before may still land, for as long as the settle period.
func (r *migrationRun) awaitFollowers(ctx context.Context, target *migrationv1alpha1.MigrationTarget) error {
	if r.status.stored.Status.StartTime != nil {
		return nil // It started, so all servers followed.
	}
	now := r.cluster.clock.Now()
	if r.followedFrom == nil || !now.Before(*r.followedFrom) {
		if err := r.everyServerFollows(ctx, target); err != nil {
			r.followedFrom = &time.Time{}
			return r.waitUntil(ctx, now.Add(followRetry), waits("%v. The migration starts when every server writes %s",
				err, versionName(target)))
		}
		if r.followedFrom == nil || !r.followedFrom.IsZero() {
			return nil
		}
		*r.followedFrom = now.Add(r.cluster.options.SettlePeriod)
	}
	return r.waitUntil(ctx, *r.followedFrom, waits(
		"a server wrote another encoding after all others wrote %s. The migration starts at %s, when writes that began "+
			"earlier have ended", versionName(target), r.followedFrom.UTC().Format(time.RFC3339)))
}

// waitUntil says what a migration waits for.
func (r *migrationRun) waitUntil(ctx context.Context, until time.Time, d Decision) error {
	if err := r.status.write(ctx, awaiting(d)); err != nil {
		return err
	}
	return &waiting{until}
}
