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

package model

import (
	"slices"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// World is what is in etcd at one revision.
type World struct {
	// Objects are the objects by resource and name.
	Objects map[string]map[string]StoredObject
	// Encodings counts the objects by resource and encoding.
	Encodings map[string]map[string]int
	// States and Migrations are by name.
	States     map[string]*v1alpha1.StorageState
	Migrations map[string]*v1alpha1.StorageVersionMigration
	// Definitions are by resource.
	Definitions map[string]Definition
}

// StoredObject is an object and the revision of its last write.
type StoredObject struct {
	Object
	Revision int64
}

// NewWorld is an empty one.
func NewWorld() *World {
	w := &World{
		Objects: map[string]map[string]StoredObject{}, Encodings: map[string]map[string]int{},
		States: map[string]*v1alpha1.StorageState{}, Migrations: map[string]*v1alpha1.StorageVersionMigration{},
		Definitions: map[string]Definition{},
	}
	for _, r := range Resources {
		w.Objects[r.Resource], w.Encodings[r.Resource] = map[string]StoredObject{}, map[string]int{}
	}
	return w
}

// Apply adds a revision.
func (w *World) Apply(r Revision) {
	switch {
	case r.Object != nil:
		o := *r.Object
		objects, encodings := w.Objects[o.Resource], w.Encodings[o.Resource]
		if before, existed := objects[o.Name]; existed {
			if encodings[before.Encoding]--; encodings[before.Encoding] == 0 {
				delete(encodings, before.Encoding)
			}
			delete(objects, o.Name)
		}
		if !o.Deleted {
			objects[o.Name] = StoredObject{o, r.Number}
			encodings[o.Encoding]++
		}
	case r.State != nil && r.State.StorageState == nil:
		delete(w.States, r.State.Name)
	case r.State != nil:
		w.States[r.State.Name] = r.State.StorageState
	case r.Migration != nil && r.Migration.StorageVersionMigration == nil:
		delete(w.Migrations, r.Migration.Name)
	case r.Migration != nil:
		w.Migrations[r.Migration.Name] = r.Migration.StorageVersionMigration
	case r.Definition != nil:
		w.Definitions[r.Definition.Resource] = *r.Definition
	}
}

// Revisions are those of an era, after all of earlier eras that it begins with. The first base of them are of earlier
// eras.
func (r Record) Revisions(era int) (revisions []Revision, base int) {
	if era == 0 {
		return r.Eras[0].Revisions, 0
	}
	earlier, _ := r.Revisions(era - 1)
	end := slices.IndexFunc(earlier, func(v Revision) bool { return v.Number > r.Eras[era].From })
	if end >= 0 {
		earlier = earlier[:end]
	}
	return slices.Concat(earlier, r.Eras[era].Revisions), len(earlier)
}
