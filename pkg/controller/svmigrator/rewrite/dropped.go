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

	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// Unless a webhook converts the objects, each write drops the fields that the schema of the storage version lacks.
// Reads at the storage version never show such a field, so no comparison there shows the loss. Reads at another version
// show the field until the write. So the rewriter reads each object at the versions that have such fields, and compares
// it with the answer to a dry run, which the API server has encoded as if it were stored.

// dropped returns the path of a field that a rewrite would drop or change for clients of this version, or an empty
// string. That may be a field with its default value: reads add the defaults of the version that is stored.
func (r *rewriter) dropped(ctx context.Context, object *sweep.Object, body []byte) (field string, err error) {
	before, err := decode(r.get(ctx, object, acceptWhole))
	if err != nil {
		return "", err
	}
	after, err := decode(r.dryRun(ctx, object, body, mergeWay))
	if err != nil {
		return "", err
	}
	delete(before.Object, "metadata") // It is the same at all versions.
	delete(after.Object, "metadata")
	return difference(before.Object, after.Object, ""), nil
}

// WouldDrop is in the message about an object that would lose a field.
const WouldDrop = " would drop "

// wouldDrop returns the attempt for an object that would lose a field.
func (r *rewriter) wouldDrop(object *sweep.Object, field string) attempt {
	version := r.resource.Version
	return attempt{object: object, outcome: sweep.Denied, failure: Failure{kind: refused, changes: true,
		message: fmt.Sprintf("rewriting %s%s%s for clients of version %s. The schema of the storage version lacks "+
			"fields of %s, and no webhook converts. Give the storage version these fields, or add a conversion webhook, or "+
			"move the values with a client of %s. If nobody needs them, stop serving %s. Then retry",
			klog.KRef(object.Namespace, object.Name), WouldDrop, field, version, version, version, version)}}
}
