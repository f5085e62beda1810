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
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// Encoding stands for how objects are stored: the hash of a group version and kind, or Unknown.
type Encoding = string

// Hash returns the encoding of a kind at a group version. It is the hash that discovery documents show.
func Hash(groupVersion schema.GroupVersion, kind string) Encoding {
	return discovery.StorageVersionHash(groupVersion.Group, groupVersion.Version, kind)
}

// encodingAt returns the encoding of a kind at a version as StorageVersion objects spell it, for example apps/v1 or v1.
func encodingAt(encodingVersion, kind string) Encoding {
	groupVersion, err := schema.ParseGroupVersion(encodingVersion)
	if err != nil || groupVersion.Version == "" {
		return Unknown
	}
	return Hash(groupVersion, kind)
}

// usualVersions are tried to find the version behind a hash when no server serves that version any more.
var usualVersions = strings.Fields("v1 v1alpha1 v1alpha2 v1alpha3 v1beta1 v1beta2 v1beta3 " +
	"v2 v2alpha1 v2alpha2 v2alpha3 v2beta1 v2beta2 v2beta3 v3 v3alpha1 v3alpha2 v3alpha3 v3beta1 v3beta2 v3beta3")

// versionsByEncoding returns versions of a group by the encoding of a kind at each of them.
func versionsByEncoding(group, kind string, versions []string) map[Encoding]string {
	all := map[Encoding]string{}
	for _, version := range versions {
		groupVersion := schema.GroupVersion{Group: group, Version: version}
		all[Hash(groupVersion, kind)] = groupVersion.String()
	}
	return all
}

// resourceOfStorageVersion returns the resource that a StorageVersion object is for. The object is named
// <group>.<resource>, with "core" for the core group. Resource names have no dots.
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
