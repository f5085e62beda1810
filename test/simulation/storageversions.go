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

package simulation

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// publish enters what a server is going to write into the StorageVersions, if it takes part. Entries of a process
// before it stay where it does not, or where it does not know the resource anymore.
func (c *cluster) publish(s *server) {
	if !s.publishes {
		return
	}
	for _, b := range builtIns {
		if b.stored[s.release] != "" {
			c.setEntry(b.resource, s.identity, b.groupVersion(s.release).String())
		}
	}
}

// setEntry changes the entry of a server in a StorageVersion, or removes it.
func (c *cluster) setEntry(resource schema.GroupResource, identity, version string) {
	before := c.published[resource]
	after := &storageversion.StorageVersion{EncodingVersions: map[string]string{}}
	if before != nil {
		if before.EncodingVersions[identity] == version {
			return
		}
		after.UID, after.EncodingVersions = before.UID, maps.Clone(before.EncodingVersions)
	}
	if after.UID == "" {
		after.UID = types.UID("storageversion-" + c.w.api.nextVersion())
	}
	after.ResourceVersion = c.w.api.nextVersion()
	after.EncodingVersions[identity] = version
	if version == "" {
		delete(after.EncodingVersions, identity)
	}
	if len(after.EncodingVersions) == 0 {
		delete(c.published, resource)
		after = nil
	} else {
		c.published[resource] = after
	}
	if c.w.tell != nil {
		c.w.log("StorageVersion of %s: %s", resource.Resource, entriesOf(after))
	}
	c.w.feeds.publish(streamStorageVersions, storageVersionTold(resource, after))
}

// collectGarbage removes entries of servers without a Lease.
func (c *cluster) collectGarbage() {
	for _, b := range builtIns {
		object := c.published[b.resource]
		if object == nil {
			continue
		}
		for i := range identities {
			identity := identityOf(i)
			if _, entered := object.EncodingVersions[identity]; entered && c.leases[identity] == nil {
				c.setEntry(b.resource, identity, "")
			}
		}
	}
}

func entriesOf(object *storageversion.StorageVersion) string {
	if object == nil {
		return "gone"
	}
	return fmt.Sprint(object.EncodingVersions)
}
