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
	"math"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// A rewrite must change nothing, but a mutating webhook or a MutatingAdmissionPolicy sees it as an update, and may
// change the object. The rewriter looks for such changes in two ways:
//
//   - It sends some rewrites as a dry run first, and compares the whole object before and after. It does so for the
//     first try in each namespace, for every hundredth try after it, for each object whose managedFields name a version
//     that the CustomResourceDefinition lacks, and for each object whose rewrite the fence has denied.
//   - It compares the metadata in the answer to each rewrite with the metadata that was listed: see fingerprint. This
//     also finds a rule that was made later or that applies only to some objects, but only after it has changed an
//     object.

// dryRunInterval is how many tries in a namespace there are from one dry run to the next.
const dryRunInterval = 100

// patchWay is how a rewrite is sent.
type patchWay struct {
	subresource string
	patch       types.PatchType
	// version is another one than that of the resource, or empty.
	version string
}

var (
	// mergeWay patches the JSON of the object. A few values of built-in resources come back from JSON as something else:
	// strings that are not UTF-8, lists that are empty and not absent.
	mergeWay = patchWay{patch: types.MergePatchType}
	// typedWay patches a built-in object without its JSON. See hasUntypedParts.
	typedWay = patchWay{patch: types.StrategicMergePatchType}
	// statusWay is the status subresource. Rules that match only the resource do not apply to it, and the API server
	// encodes the whole object anew there too.
	statusWay = patchWay{subresource: "status", patch: types.MergePatchType}
)

// hasUntypedParts reports whether objects have parts that have no type in the API. A strategic merge patch sorts the
// fields in there, and rounds numbers.
func hasUntypedParts(resource schema.GroupResource) bool {
	return resource.Group == "resource.k8s.io" || resource.Group == "apiextensions.k8s.io" ||
		resource == schema.GroupResource{Group: "apps", Resource: "controllerrevisions"}
}

// ways returns the ways in which the patch may be sent. A rewrite uses the first one that changes nothing. If objects
// were denied before, and have a status, it is the one way that the first sweep does not prefer.
func (r *rewriter) ways() []patchWay {
	status := r.resource.MayUseStatus
	switch {
	case status && r.deniedBefore && r.addsDefaults():
		return []patchWay{mergeWay} // Each object gets a dry run.
	case status && r.deniedBefore:
		return []patchWay{statusWay}
	case status && r.addsDefaults():
		return []patchWay{statusWay, mergeWay} // A merge patch of the resource adds the defaults, one of the status does not.
	}
	ways := []patchWay{mergeWay}
	if r.resource.Class == storageversion.BuiltIn && !hasUntypedParts(r.resource.GroupResource()) {
		ways = append(ways, typedWay)
	}
	if status {
		ways = append(ways, statusWay)
	}
	return ways
}

// fencedOff stands for the fields of a change that the fence has denied. The answer of the API server does not name
// them.
const fencedOff = fence.DeniedChange

// managedFieldsPath is the field that a rewrite would empty. API servers before 1.37 drop all entries if they cannot
// convert the object to the version that an entry names. All API servers drop them if they make the object too large
// for etcd, but a dry run does not show that.
const managedFieldsPath = ".metadata.managedFields"

// namespaceWay is what dry runs have shown about one namespace.
type namespaceWay struct {
	mu    sync.Mutex // held during the dry run, so that no other object of the namespace is rewritten meanwhile
	tries int        // how often an object was to be rewritten
	next  int        // the number of the next try with a dry run
	// way is the one in which rewrites change nothing. It is the first one until a dry run finds a better one.
	way patchWay
}

// maxComparedObjects is how many objects a migration reads as a whole at a time. An object may have more than a
// megabyte.
const maxComparedObjects = 2

// chooseWay returns the way in which a rewrite changes nothing. If it changes something in every way, changed is the
// first field that it changes. An error is the one that the rewrite itself would return. fenced means that the fence
// has denied the rewrite itself. Then the way that is found counts for this object only.
func (r *rewriter) chooseWay(
	ctx context.Context, object *sweep.Object, fenced bool,
) (found patchWay, changed string, err error) {
	known, _ := r.waysByNamespace.LoadOrStore(object.Namespace, &namespaceWay{way: r.ways()[0]})
	n := known.(*namespaceWay)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tries++; n.tries < n.next && !fenced && !originalOf(object).namesUndefinedVersion {
		return n.way, "", nil
	}
	if err := r.comparing.Acquire(ctx, 1); err != nil {
		return patchWay{}, "", err
	}
	defer r.comparing.Release(1)
	before, err := r.getAt(ctx, object, r.resource.Version)
	if err == nil && before.ResourceVersion != object.ResourceVersion {
		// The dry run would be a conflict, too, but only after mutating admission.
		err = apierrors.NewConflict(r.resource.GroupResource(), object.Name, errors.New("it was written after it was listed"))
	}
	if err != nil {
		return patchWay{}, "", err
	}
	found, changed, err = r.tryWays(ctx, object, before, n, fenced)
	if err == nil && changed != "" {
		other, err := r.wayAtOtherVersion(ctx, object, before)
		if err != nil || other.version != "" {
			n.next = 0
			return other, "", err
		}
	}
	return found, changed, err
}

// tryWays sends a dry run in each way until one changes nothing. It returns what chooseWay does.
func (r *rewriter) tryWays(
	ctx context.Context, object *sweep.Object, before *whole, n *namespaceWay, fenced bool,
) (found patchWay, changed string, err error) {
	for _, way := range r.ways() {
		after, err := decode(r.dryRun(ctx, object, way))
		switch {
		case changed == "" && apierrors.IsBadRequest(err) &&
			strings.Contains(err.Error(), "does not support dry run") &&
			(way != mergeWay || !r.addsDefaults()): // Only a dry run shows whether that adds defaults.
			klog.FromContext(ctx).V(2).Info("A webhook does not support dry runs, so only the metadata of objects is compared",
				"object", klog.KRef(object.Namespace, object.Name), "err", err)
			n.next = math.MaxInt
			return n.way, "", nil
		case err != nil && fence.Denies(err.Error()):
			changed = cmp.Or(changed, fencedOff)
			continue
		case err != nil && changed != "" && Classify(err, object.Name).kind.otherWay:
			continue // What is wrong with another way explains less.
		case err != nil:
			return way, "", err
		}
		path, err := r.changedBy(before, after, r.resource.Version)
		if err != nil {
			return way, "", err
		}
		if changed == fencedOff && path != managedFieldsPath {
			path = "" // The fence accepts this way, and it compares what is stored, of which a read may hide fields.
		}
		if path == "" {
			if n.next = n.tries + dryRunInterval; way == mergeWay && r.addsDefaults() {
				n.next = 0 // The next object may be stored in another version, and lack defaults.
			}
			if !fenced && way != typedWay { // typedWay is for this object: it sorts the fields of parts without a type.
				n.way = way
			}
			return way, "", nil
		}
		changed = cmp.Or(changed, path)
	}
	return patchWay{}, changed, nil
}

// dryRun sends a rewrite that is not stored.
func (r *rewriter) dryRun(ctx context.Context, object *sweep.Object, way patchWay) rest.Result {
	return r.patchRequest(object, way, acceptWhole).Param("dryRun", metav1.DryRunAll).Do(ctx)
}

// changedBy returns the path of the first field that a rewrite would change for clients of a version, or an empty
// string. It does not compare entries of managedFields, because servers may merge or drop single entries. They drop all
// entries only of custom resources that they cannot convert, or of built-in resources whose entries no release can read
// any more.
func (r *rewriter) changedBy(before, after *whole, version string) (path string, err error) {
	if r.resource.Schemas != nil && len(before.ManagedFields) > 0 && len(after.ManagedFields) == 0 {
		return managedFieldsPath, nil
	}
	if !sameJSON(before, after) {
		path, err = r.compareTrees(before, after, version)
	}
	// For instance it adds defaults that reads show anyway.
	if err == nil && path == "" && managedByUs(after) && !managedByUs(before) {
		path = managedFieldsPath + " (it adds an entry of " + controller.MigratorFieldManager + ")"
	}
	return path, err
}

// compareTrees is changedBy for everything but managedFields.
func (r *rewriter) compareTrees(before, after *whole, version string) (path string, err error) {
	r.trees.Lock()
	defer r.trees.Unlock()
	expected, err := before.tree()
	if err != nil {
		return "", err
	}
	written, err := after.tree()
	if err != nil {
		return "", err
	}
	if r.resource.Schemas != nil {
		expected = r.resource.Schemas.AfterWrite(expected, version)
	}
	path, _ = difference(expected, written, false)
	return path, nil
}

// managedByUs reports whether this program has changed a field of the object. The entry that cleaning may add has
// another operation.
func managedByUs(object *whole) bool {
	return slices.ContainsFunc(object.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == controller.MigratorFieldManager && entry.Operation == metav1.ManagedFieldsOperationUpdate
	})
}

// changeFailure returns the failure of a rewrite that changes more than the encoding. does is what it does to the
// object, for example "has changed", and what is the field.
func (r *rewriter) changeFailure(object *sweep.Object, does, what string) Failure {
	why := fmt.Sprintf("A mutating webhook or a MutatingAdmissionPolicy for updates of %s is the likely cause. Exclude "+
		"the user of this manager from it, then retry", r.resource.GroupResource())
	const byServer = ". If there is no such webhook or policy, the API server itself changes the object: store it once " +
		"with kubectl replace, as kubectl get shows it"
	const lost = "API servers before 1.37 remove all managedFields if they cannot convert the object to the version " +
		"that an entry names: because the CustomResourceDefinition lacks that version, or because the conversion webhook " +
		"fails. Define that version again or repair the webhook, or let the manager clean managedFields (docs/tasks.md), " +
		"then retry. Any API server removes " +
		"them if the object is too large for etcd in its new encoding"
	const uncleaned = "The fence refuses to let this manager clean managedFields. Apply the component cleaning " +
		"(docs/tasks.md, Clean managedFields), then retry"
	if r.addsDefaults() {
		why = "The storage version has defaults that other versions lack, and a write adds them. Serve the version in " +
			"which the object is stored, or give the resource a status subresource, then retry. If that is not the reason: " +
			why
	}
	kept := originalOf(object)
	switch {
	case what == managedFieldsPath:
		why = lost
	case what == fencedOff && kept.cleaned != nil:
		why = uncleaned + ". If the component is applied already: " + why
	case what == fencedOff && kept.namesUndefinedVersion:
		why = lost + ". If that is not the case: " + why
	case what == fencedOff:
		why += byServer
	}
	return Failure{kind: changesObject, message: fmt.Sprintf("rewriting %s %s %s. %s",
		klog.KRef(object.Namespace, object.Name), does, what, why)}
}
