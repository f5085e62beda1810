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

package validate

import (
	"slices"
	"time"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

const p1 = "P1 (no underestimate)"

// shrunk wants that an encoding in which objects are stored never leaves a state. A state that was created excludes
// nothing.
func (j *judge) shrunk(resource model.Resource, before, after *v1alpha1.StorageState) {
	if after == nil {
		return
	}
	created := before == nil || before.UID != after.UID
	if !created && after.Status.Epoch < before.Status.Epoch {
		j.violated(p1, resource.Resource, "the epoch went down from %d to %d", before.Status.Epoch, after.Status.Epoch)
	}
	for version, count := range j.world.Encodings[resource.Resource] {
		hash := resource.Hash(version)
		if (created || covers(before, hash)) && !covers(after, hash) {
			j.violated(p1, resource.Resource, "%s left the state while %d objects were stored in it: %s",
				version, count, words(after))
		}
	}
}

// covered keeps the times since when an encoding is stored of which the state says nothing.
func (j *judge) covered(name string) {
	resource, state := named(name), j.world.States[named(name).GroupResource.String()]
	if state != nil && certain(state) && j.now.Object != nil && j.live {
		j.result.Sharp++
	}
	for _, version := range resource.Versions {
		key := encoding{name, version}
		since, isMissing := j.missing[key]
		is := state != nil && j.world.Encodings[name][version] > 0 && !covers(state, resource.Hash(version))
		switch {
		case is && !isMissing:
			j.missing[key] = j.now.Seen
		case !is && isMissing:
			delete(j.missing, key)
			if passed := j.wasMissing(since); passed > j.limits.Grace {
				j.violated(p1, name, "for %v objects were stored in %s, which the state did not list", passed, version)
			}
		}
	}
}

// wasMissing is how much of the time since then nothing was broken that managers depend on.
func (j *judge) wasMissing(since time.Time) time.Duration {
	if j.live {
		j.result.Missing = max(j.result.Missing, j.now.Seen.Sub(since))
	}
	return calm(j.record.Faults, since, j.now.Seen, j.limits.Recovery)
}

// closeMissing judges what is missing at the end.
func (j *judge) closeMissing() {
	for key, since := range j.missing {
		if passed := j.wasMissing(since); passed > j.limits.Grace {
			j.violated(p1, key.resource, "for %v objects are stored in %s, and %s", passed, key.version,
				words(j.world.States[named(key.resource).GroupResource.String()]))
		}
	}
}

// mayBeDropped wants that status.storedVersions of a definition names every version that objects are stored in. Nothing
// else keeps people from dropping a version that is needed.
func (j *judge) mayBeDropped(name string) {
	definition, exists := j.world.Definitions[name]
	if !exists {
		return
	}
	for _, version := range named(name).Versions {
		key, count := encoding{name, version}, j.world.Encodings[name][version]
		before := j.droppable[key]
		j.droppable[key] = count > 0 && !slices.Contains(definition.Stored, version)
		if j.droppable[key] && !before {
			j.violated(p1, name, "status.storedVersions is %v, and %d objects are stored in %s: %v",
				definition.Stored, count, version, j.storedIn(name, version))
		}
	}
}

// storedIn names some objects that are stored in a version, and the revisions of their last writes.
func (j *judge) storedIn(name, version string) map[string]int64 {
	const some = 5
	found := map[string]int64{}
	for _, o := range j.world.Objects[name] {
		if o.Encoding == version && len(found) < some {
			found[o.Name] = o.Revision
		}
	}
	return found
}

func named(name string) model.Resource {
	for _, r := range model.Resources {
		if r.Resource == name {
			return r
		}
	}
	return model.Resource{}
}
