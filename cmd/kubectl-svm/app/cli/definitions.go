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

package cli

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// ReadDefinitions reads the metadata of all CustomResourceDefinitions into the cluster. A StorageState that is older
// than the definition is no proof: the servers may write another version by now.
func (c *Clients) ReadDefinitions(ctx context.Context, cluster *Cluster) {
	found := map[string]*metav1.ObjectMeta{}
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.Metadata.Resource(definitions).List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if d, is := object.(*metav1.PartialObjectMetadata); is {
			found[d.Name] = &metav1.ObjectMeta{Name: d.Name, UID: d.UID, Generation: d.Generation}
		}
		return nil
	})
	if err != nil {
		cluster.DefinitionsUnread = fmt.Errorf("listing CustomResourceDefinitions: %w", Explain(err))
		return // Those that were read before are still better than none.
	}
	cluster.Definitions, cluster.DefinitionsUnread = found, nil
}
