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
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// rewriter sends no-op writes of single objects.
//
// A write that changes nothing is stored all the same if the stored bytes are not what the API server would write now. The
// merge patch names uid and resourceVersion, and nothing else. Whoever wrote the object since it was listed wrote it in the
// encoding that all servers agree on, so that there is nothing left to do; and an object of the same name that was created
// since is not touched. A merge patch never creates.
type rewriter struct {
	objects *objects
	clock   clock.PassiveClock
	// subresource is that of which the write takes the way, none if empty.
	subresource string
	// clean is what to do about managedFields, nil if nothing.
	clean *cleaner
	// aggregated says that the objects are those of a server behind the API server.
	aggregated bool
	// newer says whether a resource version is surely newer than another, nil if they cannot be compared.
	newer    func(a, b string) bool
	baseline string
}

type precondition struct {
	UID             types.UID                   `json:"uid"`
	ResourceVersion string                      `json:"resourceVersion"`
	ManagedFields   []metav1.ManagedFieldsEntry `json:"managedFields,omitempty"`
}

// rewrite writes an object as it was listed.
func (r *rewriter) rewrite(ctx context.Context, object *sweep.Object) attempt {
	fields := precondition{UID: object.UID, ResourceVersion: object.ResourceVersion}
	if cleaned, ok := object.Extra.([]metav1.ManagedFieldsEntry); ok {
		fields.ManagedFields = cleaned
	}
	body, err := json.Marshal(map[string]any{"metadata": fields})
	if err != nil {
		return attempt{object: object, failure: failure{kind: refused, message: fmt.Sprintf("making a patch: %v", err)}}
	}
	var subresources []string
	if r.subresource != "" {
		subresources = []string{r.subresource}
	}
	started := r.clock.Now()
	written, err := r.objects.patch(ctx, object.Namespace, object.Name, body, subresources...)
	a := attempt{object: object}
	if err == nil {
		a.latency = r.clock.Since(started)
		a.outcome = sweep.Rewritten
		if written.ResourceVersion == object.ResourceVersion {
			a.outcome = sweep.AlreadyCurrent
		}
		return a
	}
	if ctx.Err() != nil {
		a.failure.kind = interrupted
		return a
	}
	a.failure = classify(err, object.Name)
	switch a.failure.kind {
	case refused:
		a.outcome = sweep.Denied
	case conflicting, objectGone:
		return r.resolve(ctx, object, a)
	case overloaded:
		if r.aggregated && a.failure.reason != "" && a.failure.reason != metav1.StatusReasonTooManyRequests {
			a.failure.kind = behindAway // One server that is away must not slow down the migrations of all others.
		}
	}
	return a
}

// resolve finds out what a conflict means, or that the object was not found: that alone does not say that the object was written or
// deleted, for admission may answer with it as well.
func (r *rewriter) resolve(ctx context.Context, object *sweep.Object, answer attempt) attempt {
	live, err := r.objects.get(ctx, object.Namespace, object.Name)
	a := attempt{object: object}
	switch {
	case err != nil && ctx.Err() != nil:
		a.failure.kind = interrupted
	case err != nil:
		if a.failure = classify(err, object.Name); a.failure.kind == objectGone {
			a.outcome = sweep.Gone
		}
		if a.failure.kind == refused {
			// The object may be written and not be read, so that nobody can tell.
			a.failure = answer.failure
			a.failure.kind = internal
		}
	case live.UID != object.UID:
		a.outcome = sweep.WrittenByOthers
	case live.ResourceVersion != object.ResourceVersion:
		if r.clean != nil && r.clean.prepare(object, live) {
			// Current, but its managedFields still name a version that is gone.
			object.ResourceVersion = live.ResourceVersion
			a.failure = answer.failure
			a.failure.kind = internal
			return a
		}
		a.outcome = sweep.WrittenByOthers
	default:
		a.failure = answer.failure
		a.failure.kind = internal
	}
	return a
}

// rewriteAnew is for an object of which only the identity is known: it was denied, a while ago.
func (r *rewriter) rewriteAnew(ctx context.Context, object *sweep.Object) attempt {
	a := attempt{object: object}
	live, err := r.objects.get(ctx, object.Namespace, object.Name)
	switch {
	case err != nil && ctx.Err() != nil:
		a.failure.kind = interrupted
		return a
	case err != nil:
		switch a.failure = classify(err, object.Name); a.failure.kind {
		case objectGone:
			a.outcome = sweep.Gone
		case refused:
			a.outcome = sweep.Denied
		}
		return a
	case live.UID != object.UID, r.newer != nil && r.newer(live.ResourceVersion, r.baseline):
		a.outcome = sweep.WrittenByOthers
		return a
	}
	object.ResourceVersion = live.ResourceVersion
	if r.clean != nil {
		r.clean.prepare(object, live)
	}
	return r.rewrite(ctx, object)
}

// newer says whether one resource version is surely newer than another. Nil for resources of servers that need not count as
// kube-apiserver does.
func newer(class storageversion.Class) func(a, b string) bool {
	if class != storageversion.BuiltIn && class != storageversion.Custom {
		return nil
	}
	return newerVersion
}

// newerVersion says whether resource version a is surely newer than b.
func newerVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
