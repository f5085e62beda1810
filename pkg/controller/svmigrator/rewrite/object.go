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
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// rewriter writes single objects without changing them.
//
// For such a write, the API server encodes the object anew. It stores the object only if the bytes differ from the
// stored ones, or if these were encrypted with an old key. The patch has uid and resourceVersion, and managedFields if
// these are cleaned. If somebody wrote the object after it was listed, the patch is a conflict. Nothing is left to do
// then, because all servers write the target encoding. Because of the uid, the patch does not write a new object of the
// same name. A patch never creates an object.
type rewriter struct {
	client    rest.Interface
	resource  Resource
	clock     clock.PassiveClock
	comparing *semaphore.Weighted // see maxComparedObjects
	trees     *sync.Mutex         // of the engine
	// deniedBefore means that the objects were denied before, so this is the second sweep. If a dry run shows a change
	// then, they stay denied.
	deniedBefore    bool
	waysByNamespace sync.Map // the *namespaceWay of each namespace
	// baseline is the resource version of the first list, or empty before that.
	baseline string
}

// tryResult is the result of one request to rewrite an object.
type tryResult struct {
	object *sweep.Object
	// outcome is NoOutcome if the object has to be tried again. failure says why, or why the object was denied.
	outcome sweep.Outcome
	failure Failure
	// restored ends the run: the object is older than it was listed.
	restored error
	// latency is how long the write took if the API server accepted it, even if it stored nothing. Otherwise it is zero.
	latency time.Duration
	// revision is the revision of etcd at which the object was stored. It is zero if the object was not stored, or if the
	// revision is not known.
	revision int64
}

// paceResult returns what the result shows the pacer.
func (a tryResult) paceResult() pacer.Result {
	return pacer.Result{
		Signal: a.failure.kind.signal, Latency: a.latency, Revision: a.revision,
		RetryAfter: a.failure.retryAfter,
	}
}

// rewrite writes an object as it was listed. Of an object that was denied earlier only the name and the UID are known.
// So it is read first, and left as it is if somebody wrote it after the baseline.
func (r *rewriter) rewrite(ctx context.Context, object *sweep.Object) tryResult {
	ctx = documents.AtMost(ctx, maxAnswerBytes)
	if namespaced := r.resource.Namespaced; namespaced != nil && *namespaced == (object.Namespace == "") {
		return r.outOfReach(object)
	}
	if object.ResourceVersion == "" {
		live, a := r.read(ctx, object)
		switch {
		case live == nil:
			a.outcome = cmp.Or(a.outcome, a.failure.kind.outcome)
			return a
		case !object.NeedsCleaning && newer(r.resource.Class)(live.ResourceVersion, r.baseline):
			a.outcome = sweep.WrittenByOthers
			return a
		}
		object.UID, object.ResourceVersion = live.UID, live.ResourceVersion
	}
	switch field, version, err := r.dropped(ctx, object); {
	case err != nil:
		return r.failed(ctx, object, err)
	case field != "":
		return r.wouldDrop(object, field, version)
	}
	a, err := r.tryRewrite(ctx, object, false)
	if err != nil && fence.Denies(err.Error()) {
		a, err = r.tryRewrite(ctx, object, true) // Maybe there is another way for this object.
	}
	if err != nil {
		return r.failed(ctx, object, err)
	}
	return a
}

// tryRewrite sends the rewrite, after a dry run if one is due. An error is the answer to the rewrite itself. fenced
// means that the fence has denied the rewrite before.
func (r *rewriter) tryRewrite(ctx context.Context, object *sweep.Object, fenced bool) (tryResult, error) {
	way, changed, err := r.chooseWay(ctx, object, fenced)
	switch {
	case changed != "":
		return r.wouldChange(object, changed), nil
	case err != nil:
		return r.failed(ctx, object, err), nil
	}
	request := r.patchRequest(object, way, acceptObject)
	if r.resource.DryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	started := r.clock.Now()
	written, err := answerOf[*metav1.PartialObjectMetadata](request.Do(ctx))
	if err != nil {
		return tryResult{}, err
	}
	return r.accepted(object, written, r.clock.Since(started)), nil
}

// failed returns the result for an object whose write, or the dry run before it, has failed.
func (r *rewriter) failed(ctx context.Context, object *sweep.Object, err error) tryResult {
	a := tryResult{object: object}
	a.failure = r.classify(ctx, object, err)
	switch kind := a.failure.kind; {
	case kind == changesObject:
		return r.wouldChange(object, fencedOff)
	case kind.outcome != sweep.NoOutcome:
		a.outcome = kind.outcome
	case kind.readsObject:
		a = r.resolve(ctx, object, a.failure)
	}
	return a
}

// accepted returns the result for an object whose write the API server accepted. It compares the metadata in the
// answer with the metadata that was listed.
func (r *rewriter) accepted(
	object *sweep.Object, written *metav1.PartialObjectMetadata, latency time.Duration,
) tryResult {
	a := tryResult{object: object, outcome: sweep.Rewritten, latency: latency}
	if written.ResourceVersion == object.ResourceVersion {
		a.outcome = sweep.AlreadyCurrent
		if !r.resource.DryRun { // A dry run stores nothing, so its answer always has the version of before.
			return a
		}
	}
	a.revision = r.revision(written)
	before := originalOf(object)
	does, changed := "has changed", before.firstDifference(fingerprintOf(&written.ObjectMeta))
	if changed == "" && before.hasManagedFields && len(written.ManagedFields) == 0 {
		does, changed = "has removed", managedFieldsPath
	}
	switch {
	case changed == "":
	case r.resource.DryRun:
		return r.wouldChange(object, changed)
	default:
		a.failure = r.changeFailure(object, does, changed)
	}
	return a
}

// NoRequestReaches is in the message about an object that was stored when its resource had another scope.
const NoRequestReaches = "no request reaches it"

// outOfReach returns the result for an object that lists show and no request reaches.
func (r *rewriter) outOfReach(object *sweep.Object) tryResult {
	key := path.Join(r.resource.Group, r.resource.Resource, object.Namespace, object.Name)
	return tryResult{object: object, outcome: sweep.Denied, failure: Failure{kind: refused, message: fmt.Sprintf(
		"rewriting %s: the resource was defined with another scope when the object was stored, so %s. If you need it, "+
			"create it again as kubectl get shows it. Then delete its key in etcd, which ends with /%s, and no other: not by "+
			"a prefix",
		klog.KRef(object.Namespace, object.Name), NoRequestReaches, key)}}
}

// revision returns the revision of etcd at which an object was stored. It is zero if the object was not stored, or if
// the revision is not known: resource versions of aggregated servers need not be revisions of etcd.
func (r *rewriter) revision(written *metav1.PartialObjectMetadata) int64 {
	revision, err := strconv.ParseInt(written.ResourceVersion, 10, 64)
	if err != nil || r.resource.DryRun || r.aggregated() {
		return 0
	}
	return revision
}

// aggregated reports whether an aggregated server has the objects.
func (r *rewriter) aggregated() bool { return r.resource.Class == storageversion.Aggregated }

// wouldChange returns the result for an object that a rewrite would change, as a dry run or the fence has shown. In
// general it ends the run: a webhook or policy may change the next objects too, and most of them get no dry run. It
// denies only this object in each of these cases:
//
//   - The rewrite would only empty its managedFields.
//   - The fence guards the next objects too. That does not count if the fence forbids the cleaning of managedFields.
//   - Each object of the resource gets a dry run, because of new defaults.
//   - The object was denied before.
func (r *rewriter) wouldChange(object *sweep.Object, what string) tryResult {
	a := tryResult{object: object, failure: r.changeFailure(object, "would change", what)}
	kept := originalOf(object)
	defaults := r.addsDefaults() && !r.resource.MayUseStatus // Each object gets a dry run then.
	if what == managedFieldsPath || what == fencedOff && kept.cleaned == nil || r.deniedBefore || defaults {
		a.outcome, a.failure.kind = sweep.Denied, refused
		a.failure.deniedForChange = what == fencedOff && !kept.namesUndefinedVersion || defaults
	}
	return a
}

// classify is Classify for a request about an object. A request that fails after the end of ctx was interrupted. In two
// cases the object itself may be the reason of the failure, because something on the way to the API server may refuse
// its requests: no API server was reached, or one said that it does not serve the resource. This counts after several
// tries, and only if the API server does list the resource.
func (r *rewriter) classify(ctx context.Context, object *sweep.Object, err error) Failure {
	if ctx.Err() != nil {
		return Failure{kind: interrupted}
	}
	f := Classify(err, object.Name)
	gone := f.kind == resourceGone && !documents.IsPageNotFound(err) // The page is about a version, maybe another one.
	if (f.kind == unreachable || gone) && object.Tries >= blamelessTries {
		// All requests under way may come here. A server that ignores the limit does list the resource.
		if _, _, err := r.list(ctx, "", 1, maxAnswerBytes); err == nil || errors.Is(err, documents.ErrTooLong) {
			f.kind = internal
		}
	}
	fromBehind := r.aggregated() && !errors.As(err, new(*url.Error)) // Also an answer that cannot be read.
	if fromBehind && f.kind.signal != pacer.OK {
		f.kind = aggregatedAway // An aggregated server that does not answer must not slow down other migrations.
	}
	return f
}

// resolve reads the object to find out what a conflict or a 404 means. The answer alone proves nothing, because
// admission may answer with these codes too.
func (r *rewriter) resolve(ctx context.Context, object *sweep.Object, answer Failure) tryResult {
	live, a := r.read(ctx, object)
	if live == nil && a.failure.kind != refused {
		return a
	}
	if live != nil && live.ResourceVersion != object.ResourceVersion {
		if a.restored = r.checkRestored(object, live.ResourceVersion); a.restored != nil {
			return a
		}
		if !object.NeedsCleaning && !r.predatesList(live) {
			a.outcome = sweep.WrittenByOthers
			return a
		}
		// The object is current, and its managedFields still have to be cleaned. Or nobody knows whether it is current.
		object.UID, object.ResourceVersion = live.UID, live.ResourceVersion
	}
	// Nobody wrote the object, so admission gave the answer, or a proxy on the way did. Or this program is not allowed to
	// read the object, and cannot know.
	a.failure = answer
	a.failure.kind = internal
	return a
}

// read returns the metadata of an object, and keeps what is needed of it. If it cannot, it returns nil and the result
// of the try.
func (r *rewriter) read(ctx context.Context, object *sweep.Object) (*metav1.PartialObjectMetadata, tryResult) {
	a := tryResult{object: object}
	request := r.objectRequest(object, r.client.Get(), r.resource.Version, acceptObject, objectReadTimeout)
	live, err := answerOf[*metav1.PartialObjectMetadata](request.Do(ctx))
	switch {
	case err != nil:
		if a.failure = r.classify(ctx, object, err); a.failure.kind == objectGone {
			a.outcome = sweep.Gone
		}
	case live.UID != object.UID && !r.predatesList(live):
		if a.restored = r.checkRestored(object, live.ResourceVersion); a.restored == nil {
			a.outcome = sweep.WrittenByOthers
		}
	default:
		served, err := r.versionsToKeep(ctx)
		if err == nil {
			r.keepOriginal(object, live, served)
			return live, a
		}
		a.failure = Classify(err, "")
	}
	return nil, a
}

// predatesList reports whether an object was written before the first list, which shows it as it was before that. The
// watch cache of an API server that has lost a change makes such lists. Nothing is known about the encoding of the
// object.
func (r *rewriter) predatesList(live *metav1.PartialObjectMetadata) bool {
	order, sure := compared(r.resource.Class, live.ResourceVersion, r.baseline)
	return sure && order <= 0
}

// checkRestored returns storageversion.ErrRestored if an object that was read is surely older than it was listed. Then
// what was rewritten before may be undone, too.
func (r *rewriter) checkRestored(object *sweep.Object, now string) error {
	if !newer(r.resource.Class)(object.ResourceVersion, now) {
		return nil
	}
	what := fmt.Sprintf("%s of %s", klog.KRef(object.Namespace, object.Name), r.resource.GroupResource())
	return storageversion.CheckRestored(what, now, object.ResourceVersion)
}

// compared returns the order of two resource versions. It is never sure if a server need not count as kube-apiserver
// does, for example an aggregated one.
func compared(class storageversion.Class, a, b string) (order int, sure bool) {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return order, err == nil && (class == storageversion.BuiltIn || class == storageversion.Custom)
}

// newer returns a function that reports whether resource version a is surely newer than b.
func newer(class storageversion.Class) func(a, b string) bool {
	return func(a, b string) bool {
		order, sure := compared(class, a, b)
		return sure && order > 0
	}
}
