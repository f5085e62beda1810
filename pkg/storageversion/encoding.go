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

package storageversion

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// Hash returns the hash of the encoding, the same that the discovery documents of API servers show.
func Hash(groupVersion schema.GroupVersion, kind string) string {
	return discovery.StorageVersionHash(groupVersion.Group, groupVersion.Version, kind)
}

// hashOf returns the hash of an encoding version as StorageVersion objects have it, for example apps/v1 or v1.
func hashOf(encodingVersion, kind string) string {
	groupVersion, err := schema.ParseGroupVersion(encodingVersion)
	if err != nil || groupVersion.Version == "" {
		return Unknown
	}
	return Hash(groupVersion, kind)
}

// usualVersions are tried where a hash is that of a version which is not served.
var usualVersions = func() []string {
	var all []string
	for major := range 3 {
		version := "v" + strconv.Itoa(major+1)
		all = append(all, version)
		for minor := range 3 {
			all = append(all, version+"alpha"+strconv.Itoa(minor+1), version+"beta"+strconv.Itoa(minor+1))
		}
	}
	return all
}()

// guess returns the version of the group behind a hash, empty if it is none of the usual ones.
func guess(hash, group, kind string) string {
	for _, version := range usualVersions {
		if groupVersion := (schema.GroupVersion{Group: group, Version: version}); Hash(groupVersion, kind) == hash {
			return groupVersion.String()
		}
	}
	return ""
}

// resourceOfStorageVersion takes the name of a StorageVersion object apart: <group>.<resource>, with "core" for the core
// group. Resource names have no dots.
func resourceOfStorageVersion(name string) (schema.GroupResource, bool) {
	dot := strings.LastIndex(name, ".")
	if dot <= 0 || dot == len(name)-1 {
		return schema.GroupResource{}, false
	}
	group, resource := name[:dot], name[dot+1:]
	if group == "core" {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: resource}, true
}
