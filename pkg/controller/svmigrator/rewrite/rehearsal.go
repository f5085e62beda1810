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
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// A rewrite must change nothing, but a mutating webhook or a MutatingAdmissionPolicy sees it as an update, and may
// change the object. Two things keep that from spreading:
//
//   - Before the first rewrite in a namespace the rewriter sends it as a dry run, and compares the whole object.
//   - It compares the metadata in each answer with what was listed: see fingerprint. That also notices a rule that
//     was made later or applies to some objects only, but not before an object has changed.

// maxRehearsals is how many objects of a namespace are tried if the API server answers dry runs with errors. A webhook
// that has side effects refuses all of them.
const maxRehearsals = 3

// statusWay leads around rules about the resource alone. The API server encodes the whole object anew there too.
const statusWay = "status"

// rehearsals are the dry runs of one run of a migration.
type rehearsals struct {
	mu         sync.Mutex
	namespaces map[string]*rehearsed
}

// rehearsed is what is known of one namespace.
type rehearsed struct {
	mu    sync.Mutex // held during the dry run, so that no other object of the namespace is rewritten meanwhile
	done  bool
	tries int
	// way is the subresource through which rewrites change nothing, empty for the resource itself.
	way string
}

func (r *rehearsals) of(namespace string) *rehearsed {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.namespaces == nil {
		r.namespaces = map[string]*rehearsed{}
	}
	if r.namespaces[namespace] == nil {
		r.namespaces[namespace] = &rehearsed{}
	}
	return r.namespaces[namespace]
}

// rehearse returns the way through which a rewrite changes nothing. If each way changes something, the failure says
// what. An error of a dry run is no failure: the rewrite itself will tell what is wrong.
func (r *rewriter) rehearse(ctx context.Context, object *sweep.Object, body []byte) (way string, f Failure) {
	n := r.rehearsals.of(object.Namespace)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done {
		return n.way, Failure{}
	}
	n.way = r.ways[0]
	before, err := r.getWhole(ctx, object)
	if err != nil || before.GetResourceVersion() != object.ResourceVersion {
		return n.way, Failure{}
	}
	var changed string
	for _, way := range r.ways {
		after, err := r.dryRun(ctx, object, body, way)
		if err != nil {
			n.tries++
			n.done = n.tries == maxRehearsals
			klog.FromContext(ctx).V(4).Info("A dry run failed", "object", klog.KRef(object.Namespace, object.Name), "err", err)
			return n.way, Failure{}
		}
		path := difference(before.Object, after.Object, "")
		if path == "" {
			n.done, n.way = true, way
			return way, Failure{}
		}
		if changed == "" {
			changed = path
		}
	}
	return "", r.changing(object, "would change", changed)
}

// changing is the failure of a rewrite that is no no-op.
func (r *rewriter) changing(object *sweep.Object, does, what string) Failure {
	return Failure{kind: changing, message: fmt.Sprintf("rewriting %s %s %s. A mutating webhook or a "+
		"MutatingAdmissionPolicy for updates of %s does that. Exclude the user of this manager from it, then retry",
		klog.KRef(object.Namespace, object.Name), does, what, r.resource.GroupResource())}
}

func (r *rewriter) getWhole(ctx context.Context, object *sweep.Object) (*unstructured.Unstructured, error) {
	request := r.prepare(r.client.Get(), acceptWhole, readTimeout)
	raw, err := request.NamespaceIfScoped(object.Namespace, object.Namespace != "").Name(object.Name).Do(ctx).Raw()
	return decode(raw, err)
}

func (r *rewriter) dryRun(
	ctx context.Context, object *sweep.Object, body []byte, way string,
) (*unstructured.Unstructured, error) {
	raw, err := r.patchRequest(object, body, way, acceptWhole).Param("dryRun", metav1.DryRunAll).Do(ctx).Raw()
	return decode(raw, err)
}

func decode(raw []byte, err error) (*unstructured.Unstructured, error) {
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &object.Object); err != nil {
		return nil, fmt.Errorf("decoding an object: %w", err)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "managedFields")
	return object, nil
}

// difference returns the path of the first field that differs, or nothing. It shows no values: they may be secret.
func difference(before, after any, path string) string {
	a, b := fieldsOf(before), fieldsOf(after)
	if a == nil || b == nil {
		if reflect.DeepEqual(before, after) {
			return ""
		}
		return path
	}
	for _, name := range slices.Sorted(maps.Keys(sets.KeySet(a).Union(sets.KeySet(b)))) {
		if path == ".metadata" && name == ".resourceVersion" {
			continue
		}
		if found := difference(a[name], b[name], path+name); found != "" {
			return found
		}
	}
	return ""
}

// fieldsOf returns the fields or items of a value by their part of a path, or nil if it has none.
func fieldsOf(value any) map[string]any {
	fields := map[string]any{}
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			fields["."+name] = field
		}
	case []any:
		for i, item := range value {
			fields[fmt.Sprintf("[%d]", i)] = item
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return fields
}

// fingerprint stands for the metadata of an object that a rewrite must not change. The API server counts changes of the
// rest in the generation, for resources that have one.
type fingerprint struct {
	generation                              int64
	labels, annotations, finalizers, owners uint64
}

func fingerprintOf(m *metav1.ObjectMeta) fingerprint {
	return fingerprint{
		m.Generation, hashOf(m.Labels), hashOf(m.Annotations), hashOf(m.Finalizers), hashOf(m.OwnerReferences),
	}
}

// hashOf does not depend on the order of a map: Marshal sorts.
func hashOf(value any) uint64 {
	encoded, _ := json.Marshal(value) // Metadata can always be encoded: it was decoded.
	h := fnv.New64a()
	_, _ = h.Write(encoded) // never fails
	return h.Sum64()
}

// differs returns the first field that differs, or nothing.
func (f fingerprint) differs(other fingerprint) string {
	switch {
	case f.labels != other.labels:
		return ".metadata.labels"
	case f.annotations != other.annotations:
		return ".metadata.annotations"
	case f.finalizers != other.finalizers:
		return ".metadata.finalizers"
	case f.owners != other.owners:
		return ".metadata.ownerReferences"
	case f.generation != other.generation:
		return "what .metadata.generation counts, the spec for most resources"
	default:
		return ""
	}
}

// listed is what the rewriter keeps of the metadata of an object until its rewrite is answered.
type listed struct {
	fingerprint
	// managedFields are those that the object must get, nil if they stay as they are.
	managedFields []metav1.ManagedFieldsEntry
}

// keep remembers the metadata of an object before its rewrite. It reports whether managedFields have to be cleaned.
func (r *rewriter) keep(object *sweep.Object, live *metav1.PartialObjectMetadata) (cleans bool) {
	kept := &listed{fingerprint: fingerprintOf(&live.ObjectMeta)}
	if r.cleaner != nil {
		kept.managedFields = r.cleaner.cleaned(live)
	}
	object.Extra = kept
	return kept.managedFields != nil
}
