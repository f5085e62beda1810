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

package controlplane

import (
	"context"
	"fmt"
)

// StoredUnder reads every object whose key begins with prefix, for example /registry/configmaps/, all as of one
// revision of etcd: the current one if revision is zero. It is for those who look often, because it does not look
// through all of etcd as Stored does, and for those who compare with another object as of its resourceVersion.
// Revisions go when API servers compact etcd, every five minutes.
func (cp *ControlPlane) StoredUnder(ctx context.Context, prefix string, revision int64) ([]StoredObject, error) {
	decoder, err := cp.newDecoder(ctx)
	if err != nil {
		return nil, err
	}
	defer decoder.close()
	objects, err := cp.readPrefix(ctx, decoder, prefix, revision)
	if err != nil {
		return nil, fmt.Errorf("reading %s from etcd as of revision %d: %w", prefix, revision, err)
	}
	return objects, nil
}
