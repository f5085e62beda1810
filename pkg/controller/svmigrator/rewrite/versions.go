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
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// This file is about custom resources whose versions have different schemas. See documents.Schemas.
//
// A write drops the fields that the storage version lacks. Clients of another version read them until then, and clients
// of the storage version never do, so no comparison there shows the loss.
//
// A merge patch adds the defaults of the storage version to an object that is stored in another one. Reads will show
// them anyway, because API servers add the defaults of the version that is stored. But for the API server that is a
// change: the generation rises, and the fence refuses it. A patch of the status, or one at the version in which the
// object is stored, adds nothing.

// dropped returns the path of a field that clients of a version read now and would not read after a rewrite, or an
// empty string.
func (r *rewriter) dropped(ctx context.Context, object *sweep.Object) (field, version string, err error) {
	if r.resource.Schemas == nil || len(r.resource.Schemas.Lossy) == 0 {
		return "", "", nil
	}
	if err := r.comparing.Acquire(ctx, 1); err != nil {
		return "", "", err
	}
	defer r.comparing.Release(1)
	for _, version := range r.resource.Schemas.Lossy {
		before, err := r.getAt(ctx, object, version)
		if err != nil {
			return "", "", err
		}
		if field, err := r.droppedAt(before, version); field != "" || err != nil {
			return field, version, err
		}
	}
	return "", "", nil
}

// droppedAt is dropped for an object as it was read at one version.
func (r *rewriter) droppedAt(object *whole, version string) (field string, err error) {
	r.trees.Lock()
	defer r.trees.Unlock()
	before, err := object.tree()
	if err != nil {
		return "", err
	}
	delete(before, "metadata") // It is the same at all versions.
	field, _ = difference(before, r.resource.Schemas.AfterWrite(before, version), true)
	return field, nil
}

// addsDefaults reports whether a merge patch of the resource may add defaults to objects.
func (r *rewriter) addsDefaults() bool {
	return r.resource.Schemas != nil && r.resource.Schemas.AddsDefaults
}

// wayAtOtherVersion returns a way at a version in which the rewrite changes nothing. before is the object at the
// version of the resource. Its version is empty if there is no such way. It counts for this object only: another one
// may have fields that only the storage version has, and a write at another version would drop these.
func (r *rewriter) wayAtOtherVersion(
	ctx context.Context, object *sweep.Object, before *whole,
) (patchWay, error) {
	if !r.addsDefaults() {
		return patchWay{}, nil
	}
	for _, version := range r.resource.Schemas.Others {
		there, err := r.getAt(ctx, object, version)
		if err != nil {
			return patchWay{}, err
		}
		switch equal, err := r.storedAs(there, before); {
		case err != nil:
			return patchWay{}, err
		case !equal:
			continue
		}
		way, changed := patchWay{patch: types.MergePatchType, version: version}, ""
		after, err := decode(r.dryRun(ctx, object, way))
		if err == nil {
			changed, err = r.changedBy(there, after, version)
		}
		switch {
		case err == nil && changed == "":
			return way, nil
		case err == nil, Classify(err, object.Name).kind.otherWay:
		default:
			return patchWay{}, err
		}
	}
	return patchWay{}, nil
}

// storedAs reports whether an object as it was read at another version is the same at the version of the resource.
func (r *rewriter) storedAs(there, here *whole) (bool, error) {
	r.trees.Lock()
	defer r.trees.Unlock()
	other, err := there.tree()
	if err != nil {
		return false, err
	}
	object, err := here.tree()
	if err != nil {
		return false, err
	}
	stored := r.resource.Schemas.Convert(other, r.resource.Version)
	stored["apiVersion"] = here.APIVersion
	_, differs := difference(object, stored, false)
	return !differs, nil
}

// WouldDrop is in the message about an object that would lose a field.
const WouldDrop = " would drop "

// wouldDrop returns the result for an object that would lose a field.
func (r *rewriter) wouldDrop(object *sweep.Object, field, version string) tryResult {
	return tryResult{object: object, outcome: sweep.Denied, failure: Failure{kind: refused, deniedForChange: true,
		message: fmt.Sprintf("rewriting %s%s%s for clients of version %s. The schema of the storage version lacks "+
			"fields of %s, and no webhook converts. Give the storage version these fields, or add a conversion webhook, or "+
			"move the values with a client of %s. If nobody needs them, stop serving %s. Then retry",
			klog.KRef(object.Namespace, object.Name), WouldDrop, field, version, version, version, version)}}
}
