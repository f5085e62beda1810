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
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// customVersion is a position in customVersions.
type customVersion int

var (
	customVersions  = []string{"v1", "v2", "v3"}
	customKind      = "CronTab"
	customEncodings [3]string
)

// handlerDelay is how long a server may need to notice that a definition changed.
const handlerDelay = 5 * time.Second

// definition is a CustomResourceDefinition.
type definition struct {
	uid        types.UID
	generation int64
	storage    customVersion
	// stored is status.storedVersions.
	stored []customVersion
	// sources are the latest changes to each version.
	sources [3]*source
}

func (d *definition) encoding(version customVersion) string {
	return customEncodings[version]
}

// fact is what an observer reads.
func (d *definition) fact() *storageversion.Definition {
	if d == nil {
		return nil
	}
	fact := &storageversion.Definition{
		UID: d.uid, Generation: d.generation, Group: crontabs.Group, Kind: customKind,
		StorageVersion: customVersions[d.storage], ServedVersions: customVersions, Established: true,
		Content: customVersions[d.storage],
	}
	for _, version := range d.stored {
		fact.StoredVersions = append(fact.StoredVersions, customVersions[version])
	}
	return fact
}

// change replaces the definition, and tells of it.
func (c *cluster) change(change func(*definition)) {
	if c.definition == nil {
		return
	}
	after := *c.definition
	after.stored = slices.Clone(after.stored)
	change(&after)
	c.definition = &after
	c.w.log("definition: generation %d, storage %s, stored %v", after.generation, customVersions[after.storage],
		after.stored)
	c.w.feeds.publish(streamDefinitions, definitionTold(after.fact()))
	c.w.migrant.askFollowers()
}

// flip changes the storage version. The handlers of the servers follow, one after the other.
func (c *cluster) flip(to customVersion) {
	if c.definition == nil || c.definition.storage == to {
		return
	}
	c.change(func(d *definition) {
		d.generation++
		d.storage = to
		if !slices.Contains(d.stored, to) {
			d.stored = append(d.stored, to)
		}
		d.sources[to] = c.sourceOf(d)
	})
	uid, generation := c.definition.uid, c.definition.generation
	for _, s := range c.servers {
		c.w.after(c.w.dice.rather(handlerDelay), func() {
			if c.definition == nil || c.definition.uid != uid || !s.lives || s.frozen || s.noticed >= generation ||
				c.w.now.Before(s.held) {
				return
			}
			c.w.store.writeCustomSlowly(s)
			s.follows, s.noticed, s.returned = to, generation, false
		})
	}
}

// hold keeps a server from hearing of changes of the definition for a while. Then it hears of the last one.
func (c *cluster) hold(identity string, d time.Duration) {
	s := c.of(identity)
	if s == nil || !s.lives {
		return
	}
	c.w.log("%s hears of no change of the definition for %s", s.incarnation, d)
	s.held = c.w.now.Add(d)
	c.w.after(d, func() { c.catchUp(s) })
}

// catchUp has a server hear of the definition as it is now.
func (c *cluster) catchUp(s *server) {
	if c.definition == nil || !s.lives || s.frozen || c.w.now.Before(s.held) {
		return
	}
	if s.noticed >= c.definition.generation {
		s.returned = false
		return
	}
	c.w.store.writeCustomSlowly(s)
	c.follow(s)
}

// follow has a server act on the definition as it is now.
func (c *cluster) follow(s *server) {
	if d := c.definition; d != nil {
		s.follows, s.noticed, s.returned = d.storage, d.generation, false
	}
}

// sourceOf makes one of a change of the storage version.
func (c *cluster) sourceOf(d *definition) *source {
	from := &source{
		name: fmt.Sprintf("generation %d of %s", d.generation, d.uid), definition: d.uid, generation: d.generation,
		began: c.w.now, grace: latency,
	}
	c.sources[from.name] = from
	return from
}

// touch changes something else in the definition.
func (c *cluster) touch() { c.change(func(d *definition) { d.generation++ }) }

// shorten takes all versions but the current one out of status.storedVersions, without any right to do so.
func (c *cluster) shorten() {
	c.change(func(d *definition) { d.stored = []customVersion{d.storage} })
}

// define creates the definition, if there is none.
func (c *cluster) define(storage customVersion) {
	if c.definition != nil {
		return
	}
	c.started++
	uid := types.UID(fmt.Sprintf("definition-%d", c.started))
	c.definition = &definition{
		uid: uid, generation: 1, storage: storage, stored: []customVersion{storage},
	}
	c.definition.sources[storage] = c.sourceOf(c.definition)
	for _, s := range c.servers {
		s.follows, s.noticed, s.returned = storage, 1, false
	}
	c.w.log("definition is created with storage %s", customVersions[storage])
	c.w.feeds.publish(streamDefinitions, definitionTold(c.definition.fact()))
}

// undefine deletes the definition, and its objects with it.
func (c *cluster) undefine() {
	if c.definition == nil {
		return
	}
	c.w.log("definition is deleted")
	c.definition = nil
	c.w.store.clear(crontabs)
	c.w.feeds.publish(streamDefinitions, definitionTold(nil))
}
