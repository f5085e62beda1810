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
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// checkAllRefused returns an error if the answers so far show that this program cannot write any object of the
// resource.
func (r *sweepRunner) checkAllRefused(a attempt) error {
	switch {
	case r.retriesDenied():
		return nil
	case a.outcome == sweep.Rewritten, a.outcome == sweep.AlreadyCurrent:
		r.changing.reset()
		return nil
	case a.failure.changes && r.task.Only != nil:
		return nil // All others are stored.
	case a.failure.changes && r.stored() > 0 && strings.Contains(a.failure.message, WouldDrop):
		return nil // It depends on the object, and no rule is to blame.
	case a.failure.changes:
		return r.changing.add(a, r.stored() == 0)
	case a.outcome != sweep.Denied || !a.failure.lacksPermission("get", "patch"):
		return nil
	}
	r.forbidden, r.forbiddenBy = r.forbidden+1, a.failure
	if r.forbidden < forbiddenAtLeast || r.stored() > 0 {
		return nil // Only some namespaces are forbidden, or the permission was revoked during the run.
	}
	return r.refusedError(fmt.Sprintf("any object, so only %d were tried", r.forbidden))
}

func (r *sweepRunner) refusedError(what string) error {
	return &PermanentError{migrationv1alpha1.MigrationReasonRewritesRefused, fmt.Sprintf(
		"The API server refuses to rewrite %s: %s%s", what, r.forbiddenBy, r.forbiddenBy.remedy())}
}

// stored is how many objects are known to be stored in the target encoding.
func (r *sweepRunner) stored() int64 {
	counts := r.sweep.Progress().Counts
	return counts[sweep.Rewritten] + counts[sweep.AlreadyCurrent] + counts[sweep.WrittenByOthers]
}

// changingRow are the objects that were denied since one was stored, because a rewrite would change them.
type changingRow struct {
	objects    int
	namespaces sets.Set[string]
	last       Failure
}

func (f *changingRow) reset() { *f = changingRow{} }

// add adds an object. It returns an error if the row shows that a rewrite changes all objects: if it has
// changingAtLeast objects, and these are of several namespaces. Objects without a namespace show that only if none was
// stored.
func (f *changingRow) add(a attempt, noneStored bool) error {
	f.objects, f.last = f.objects+1, a.failure
	if f.namespaces == nil {
		f.namespaces = sets.Set[string]{}
	}
	f.namespaces.Insert(a.object.Namespace)
	all := noneStored && a.object.Namespace == "" || len(f.namespaces) > 1
	if f.objects >= changingAtLeast && all {
		return a.failure.changesObjectsError()
	}
	return nil
}

// checkAllDenied returns an error if all objects were denied for one reason: because a rewrite would change them, or
// because the permission is missing.
func (r *sweepRunner) checkAllDenied() error {
	denied := int(r.sweep.Progress().Counts[sweep.Denied])
	switch {
	case denied == 0, r.stored() > 0:
		return nil
	case r.changing.objects >= denied:
		return r.changing.last.changesObjectsError()
	case r.forbidden >= denied && r.task.Only == nil: // Otherwise all others are stored.
		return r.refusedError("any object")
	}
	return nil
}

// givesUpOn reports whether the API server has failed on the object for so long that other objects must not wait for it
// any longer.
func (r *sweepRunner) givesUpOn(object *sweep.Object, now time.Time) bool {
	failing := now.Sub(object.FailingSince)
	if object.Failures < giveUpFailures || failing < giveUpTime {
		return false
	}
	fewLeft := r.sweep.Unfinished() <= giveUpMost && r.sweep.Stored() > 0
	return fewLeft || r.impatient || failing >= outageAtMost
}
