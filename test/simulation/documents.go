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
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// balancer is the address behind which any server may answer.
const balancer = "balancer"

// document is what whoever answers at an address says of itself.
func (c *cluster) document(address string) storageversion.Document {
	document, _ := c.ask(address)
	return document
}

// ask returns what whoever answers at an address says of itself, and who it is.
func (c *cluster) ask(address string) (storageversion.Document, *server) {
	s := c.at(address)
	if address == balancer {
		s = c.connect()
	}
	if s == nil {
		return storageversion.Document{Failure: "connection refused"}, nil
	}
	return c.documentOf(s), s
}

// connect returns the server that a new connection to the balancer reaches, nil if there is none.
func (c *cluster) connect() *server {
	answering := slices.DeleteFunc(c.accepting(), func(s *server) bool { return !s.answers })
	if len(answering) == 0 {
		return nil
	}
	c.connections++ // Without chance connections go round.
	return answering[(c.connections+c.w.dice.below(len(answering)))%len(answering)]
}

func (c *cluster) documentOf(s *server) storageversion.Document {
	if c.w.now.Before(c.failsUntil[s.address]) {
		return storageversion.Document{Failure: "timeout"}
	}
	document := storageversion.Document{
		Resources:             map[schema.GroupResource]storageversion.Resource{},
		ServesStorageVersions: s.publishes, Version: "v1.37.1",
	}
	switch {
	case c.keepsLease(s):
		document.Version = "v1.34.4"
	case c.leasing != replaced:
		document.Version = "v1.35.4"
	}
	if c.keepsLease(s) && c.leasing == kept || !c.addressed() {
		document.Started = s.began
	}
	for _, b := range builtIns {
		if len(b.served[s.release]) > 0 {
			document.Resources[b.resource] = storageversion.Resource{
				Kind: b.kind, Versions: b.served[s.release], Hash: b.encoding(s.release), Migratable: true,
			}
		}
	}
	return document
}

func documentsInWords(documents map[string]storageversion.Document) string {
	var parts []string
	for _, address := range slices.Sorted(maps.Keys(documents)) {
		document := documents[address]
		part := document.Failure
		if part == "" {
			var all []string
			for _, b := range builtIns {
				all = append(all, words(document.Resources[b.resource].Hash))
			}
			part = strings.Join(all, "/")
		}
		parts = append(parts, fmt.Sprintf("%s: %s", address, part))
	}
	return strings.Join(parts, "; ")
}
