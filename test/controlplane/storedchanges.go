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
	"errors"
	"fmt"
	"maps"
	"slices"
)

// StoredChanges is what happened to stored objects between two readings of them. Objects are named by their keys in
// etcd, in order.
type StoredChanges struct {
	// Created and Deleted are those that only the later and only the earlier reading has. One that was deleted and created
	// anew in between is both.
	Created, Deleted []string
	// Changed are those of the others that do not say the same as before, by WholeHash. What cannot be read has changed if
	// it was written.
	Changed []string
	// Encoded are those of the others that are in another encoding, or encrypted with something else, than before.
	Encoded []string
	// Writes counts the writes in between of each of the others, by etcd: zero for those that nobody wrote.
	Writes map[string]int64
}

// CompareStored tells what happened between two readings by Stored or StoredUnder.
func CompareStored(before, after []StoredObject) StoredChanges {
	changes := StoredChanges{Writes: map[string]int64{}}
	earlier := map[string]StoredObject{}
	for _, o := range before {
		earlier[o.Key] = o
	}
	for _, now := range after {
		was, existed := earlier[now.Key]
		if !existed || was.CreateRevision != now.CreateRevision {
			changes.Created = append(changes.Created, now.Key)
			continue
		}
		delete(earlier, now.Key)
		changes.Writes[now.Key] = now.Version - was.Version
		if !saysTheSame(was, now) {
			changes.Changed = append(changes.Changed, now.Key)
		}
		if was.Encoding != now.Encoding || was.Provider != now.Provider {
			changes.Encoded = append(changes.Encoded, now.Key)
		}
	}
	changes.Deleted = slices.Sorted(maps.Keys(earlier))
	slices.Sort(changes.Created)
	slices.Sort(changes.Changed)
	slices.Sort(changes.Encoded)
	return changes
}

func saysTheSame(was, now StoredObject) bool {
	if was.WholeHash == "" || now.WholeHash == "" {
		return was.ModRevision == now.ModRevision
	}
	return was.WholeHash == now.WholeHash
}

// OnlyEncodings is nil if the same objects say the same as before, whatever they are encoded in now, else it names
// those that do not.
func (c StoredChanges) OnlyEncodings() error {
	var errs []error
	for what, keys := range map[string][]string{"created": c.Created, "deleted": c.Deleted, "changed": c.Changed} {
		if len(keys) > 0 {
			errs = append(errs, fmt.Errorf("%d objects were %s: %v", len(keys), what, keys))
		}
	}
	return errors.Join(errs...)
}
