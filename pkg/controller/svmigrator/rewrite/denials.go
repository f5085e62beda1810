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

package rewrite

import (
	"fmt"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// commonDenials are the objects that were denied for one reason that may concern all objects of the resource.
type commonDenials struct {
	objects, counted int
	byNamespace      map[string]int
	last             Failure
}

// add adds an object, and reports whether there are enough denials to expect the same for all objects. If rewrites
// would change the objects, a few of each namespace count: a webhook or policy may be for some namespaces only. A
// missing permission concerns all namespaces.
func (d *commonDenials) add(a tryResult) (enough bool) {
	if d.byNamespace == nil {
		d.byNamespace = map[string]int{}
	}
	namespace := a.object.Namespace
	d.objects, d.byNamespace[namespace], d.last = d.objects+1, d.byNamespace[namespace]+1, a.failure
	if !a.failure.deniedForChange || namespace == "" || d.byNamespace[namespace] <= commonDenialsOfNamespace {
		d.counted++
	}
	return d.counted >= commonDenialsAtLeast
}

// checkCommonDenials returns an error if the answers so far show that this program cannot write any object of the
// resource: because a rewrite would change them, or because the permission is missing.
func (r *sweepRunner) checkCommonDenials(a tryResult) error {
	var row *commonDenials
	switch {
	case r.isSecondSweep():
		return nil
	case a.failure.deniedForChange:
		row = &r.deniedForChange
	case a.outcome == sweep.Denied && a.failure.lacksPermission("get", "patch"):
		row = &r.deniedForPermission
	default:
		return nil
	}
	if row.add(a) && !r.othersMigrated() {
		return row.permanentError(fmt.Sprintf(", so only %d were tried", row.objects))
	}
	return nil
}

// checkAllDenied returns an error if all objects were denied for one of these reasons.
func (r *sweepRunner) checkAllDenied() error {
	denied := int(r.sweep.Progress().Counts[sweep.Denied])
	for _, row := range []commonDenials{r.deniedForChange, r.deniedForPermission} {
		if denied > 0 && row.objects >= denied && !r.othersMigrated() {
			return row.permanentError("")
		}
	}
	return nil
}

// permanentError returns the error that ends the run. tried says how many objects were tried, if that is not all.
func (d *commonDenials) permanentError(tried string) error {
	if d.last.deniedForChange {
		failure := d.last
		failure.kind = changesObject
		return failure.permanentError()
	}
	return &PermanentError{migrationv1alpha1.MigrationReasonRewritesRefused, fmt.Sprintf(
		"The API server refuses to rewrite any object%s: %s%s", tried, d.last, d.last.remedy())}
}

// othersMigrated reports whether other objects are known to be stored in the target encoding. Then what concerns an
// object does not concern all of them.
func (r *sweepRunner) othersMigrated() bool { return r.migrated() > 0 || r.task.Only != nil }

// migrated is how many objects are known to be stored in the target encoding.
func (r *sweepRunner) migrated() int64 { return r.sweep.Progress().Counts.Migrated() }

// givesUpOn reports whether the API server has failed on the object for so long that other objects must not wait for it
// any longer.
func (r *sweepRunner) givesUpOn(object *sweep.Object, now time.Time) bool {
	failing := r.runTime(now).Sub(object.FailingSince)
	if object.Failures < giveUpFailures || failing < giveUpTime {
		return false
	}
	fewUnfinished := r.sweep.UnfinishedInChunk() <= giveUpMost && r.sweep.AcceptedInChunk() > 0
	return fewUnfinished || r.impatient || failing >= outageAtMost
}
