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

package run

import (
	"context"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// store has the migrations of this process, in the place of an API server. The migrator reads and writes them here, as
// it does in a cluster. There are no StorageStates, so the migrator relies on what it observes itself. The store is all
// clients on the way to a migration, with the methods that the migrator calls. The others are nil.
type store struct {
	versioned.Interface
	migrationclient.MigrationV1alpha1Interface
	migrationclient.StorageVersionMigrationInterface

	// save keeps a migration for another process. It is called for each change, before others see it.
	save func(*migrationv1alpha1.StorageVersionMigration) error

	mu         sync.Mutex
	version    int
	migrations map[string]*migrationv1alpha1.StorageVersionMigration
	watchers   *watch.Broadcaster
}

func newStore(save func(*migrationv1alpha1.StorageVersionMigration) error) *store {
	return &store{
		save: save, migrations: map[string]*migrationv1alpha1.StorageVersionMigration{},
		watchers: watch.NewBroadcaster(0, watch.WaitIfChannelFull),
	}
}

// add puts a migration in before anybody watches.
func (s *store) add(m *migrationv1alpha1.StorageVersionMigration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(m.DeepCopy())
}

// put stores a migration under a new resource version.
func (s *store) put(m *migrationv1alpha1.StorageVersionMigration) {
	s.version++
	m.ResourceVersion = strconv.Itoa(s.version)
	s.migrations[m.Name] = m
}

// all returns the migrations, the oldest first.
func (s *store) all() []migrationv1alpha1.StorageVersionMigration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copies()
}

func (s *store) copies() []migrationv1alpha1.StorageVersionMigration {
	var all []migrationv1alpha1.StorageVersionMigration
	for _, m := range s.migrations {
		all = append(all, *m.DeepCopy())
	}
	slices.SortFunc(all, func(a, b migrationv1alpha1.StorageVersionMigration) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return all
}

// IsWatchListSemanticsUnSupported makes informers list before they watch.
func (s *store) IsWatchListSemanticsUnSupported() bool { return true }

func (s *store) MigrationV1alpha1() migrationclient.MigrationV1alpha1Interface { return s }

func (s *store) StorageVersionMigrations() migrationclient.StorageVersionMigrationInterface { return s }

func (s *store) StorageStates() migrationclient.StorageStateInterface { return noStates{} }

func (s *store) Get(
	_ context.Context, name string, _ metav1.GetOptions,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, exists := s.migrations[name]
	if !exists {
		return nil, apierrors.NewNotFound(migrationv1alpha1.Resource("storageversionmigrations"), name)
	}
	return m.DeepCopy(), nil
}

func (s *store) List(
	context.Context, metav1.ListOptions,
) (*migrationv1alpha1.StorageVersionMigrationList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &migrationv1alpha1.StorageVersionMigrationList{
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}, Items: s.copies(),
	}, nil
}

// Watch begins with what is stored: a change between the list and the watch must not be lost.
func (s *store) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first []watch.Event
	for _, m := range s.copies() {
		first = append(first, watch.Event{Type: watch.Modified, Object: &m})
	}
	return s.watchers.WatchWithPrefix(first)
}

func (s *store) UpdateStatus(
	_ context.Context, changed *migrationv1alpha1.StorageVersionMigration, _ metav1.UpdateOptions,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := migrationv1alpha1.Resource("storageversionmigrations")
	before, exists := s.migrations[changed.Name]
	switch {
	case !exists:
		return nil, apierrors.NewNotFound(resource, changed.Name)
	case before.ResourceVersion != changed.ResourceVersion:
		return nil, apierrors.NewConflict(resource, changed.Name, nil)
	}
	after := before.DeepCopy()
	after.Status = *changed.Status.DeepCopy()
	if err := s.save(after); err != nil {
		return nil, err
	}
	s.put(after)
	if err := s.watchers.Action(watch.Modified, after.DeepCopy()); err != nil {
		return nil, err
	}
	return after.DeepCopy(), nil
}

// noStates is a client of a cluster without StorageStates.
type noStates struct {
	migrationclient.StorageStateInterface
}

func (noStates) Get(_ context.Context, name string, _ metav1.GetOptions) (*migrationv1alpha1.StorageState, error) {
	return nil, apierrors.NewNotFound(migrationv1alpha1.Resource("storagestates"), name)
}

func (noStates) List(context.Context, metav1.ListOptions) (*migrationv1alpha1.StorageStateList, error) {
	return &migrationv1alpha1.StorageStateList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (noStates) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}
