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
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	migrationlisters "sigs.k8s.io/svm-api/client/listers/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestOrderOfTurns(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	c := &Controller{migrations: migrationlisters.NewStorageVersionMigrationLister(indexer), stuck: sets.New[types.UID]()}
	queue := &inOrder{before: c.before}
	for _, name := range []string{"gone", "new", "old", "begun", "begun-first", "stuck-first"} {
		queue.Push(name)
	}
	for name, age := range map[string]time.Duration{"new": 1, "old": 2, "begun": 3, "begun-first": 4, "stuck-first": 5} {
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Name, m.UID, m.CreationTimestamp = name, types.UID(name), metav1.NewTime(noon.Add(-age*time.Minute))
			if age > 2 {
				m.Status.StartTime = ptr.To(m.CreationTimestamp)
			}
		})
		if err := indexer.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	c.noteEnd("stuck-first", errStuck)
	c.noteEnd("begun", errStuck)
	c.noteEnd("begun", errStopped)
	var order []string
	for queue.Len() > 0 {
		order = append(order, queue.Pop())
	}
	if want := []string{"gone", "begun-first", "begun", "old", "new", "stuck-first"}; !slices.Equal(order, want) {
		t.Errorf("turns come in the order %q, want %q", order, want)
	}
}
