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
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// files keep migrations that have not ended, one file for each resource.
type files struct{ dir string }

// path is where the migration of a resource is kept.
func (f files) path(resource schema.GroupResource) string {
	return filepath.Join(f.dir, "kubectl-svm-run."+resource.String()+".yaml")
}

// load returns the migration of a resource that was interrupted, or nil.
func (f files) load(resource schema.GroupResource) (*migrationv1alpha1.StorageVersionMigration, error) {
	path := f.path(resource)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	m := &migrationv1alpha1.StorageVersionMigration{}
	if err == nil {
		err = yaml.UnmarshalStrict(content, m)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the progress of an earlier run from %s: %w", path, err)
	}
	if m.GroupResource() != resource {
		return nil, fmt.Errorf("%s is about %s, not about %s", path, m.GroupResource(), resource)
	}
	return m, nil
}

// remove forgets the migration of a resource.
func (f files) remove(resource schema.GroupResource) error {
	if err := os.Remove(f.path(resource)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the saved progress: %w", err)
	}
	return nil
}

// save keeps a migration that has begun and has not ended. It removes the file of one that has ended.
func (f files) save(m *migrationv1alpha1.StorageVersionMigration) error {
	path := f.path(m.GroupResource())
	if m.Finished() {
		return f.remove(m.GroupResource())
	}
	if !m.Begun() {
		return nil // Nothing was done.
	}
	content, err := yaml.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding the progress: %w", err)
	}
	// Renamed into place when it is on the disk, so that the file is either the old or the new one if this process is
	// killed, or the machine loses power.
	temporary, err := os.CreateTemp(f.dir, filepath.Base(path)+".*.new")
	if err == nil {
		_, err = temporary.Write(content)
		if err = errors.Join(err, temporary.Sync(), temporary.Close()); err == nil {
			err = os.Rename(temporary.Name(), path)
		}
		if err != nil {
			_ = os.Remove(temporary.Name()) // It may be what fills the disk.
		}
	}
	if err != nil {
		return fmt.Errorf("saving the progress: %w", err)
	}
	return nil
}
