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

package observer

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func (o *Observer) watchDefinitions(ctx context.Context) {
	from := source{client: o.clients.definitions, resource: "customresourcedefinitions"}
	follow(ctx, o.clock, from, handlers[*definition]{
		replace: o.replaceDefinitions,
		set: func(d *definition) {
			o.update(func(now time.Time) storageversion.Changes { return o.setDefinition(now, d) })
		},
		delete: func(d *definition) {
			o.update(func(now time.Time) storageversion.Changes { return o.deleteDefinition(now, d.resource()) })
		},
		upToDate: func() { o.alive(migrationv1alpha1.EvidenceFromCustomResourceDefinition) },
	})
}

func (o *Observer) replaceDefinitions(all []*definition) {
	o.update(func(now time.Time) storageversion.Changes {
		gone := maps.Clone(o.definitions)
		changes := storageversion.Changes{}
		for _, d := range all {
			delete(gone, d.resource())
			maps.Copy(changes, o.setDefinition(now, d))
		}
		for resource := range gone {
			maps.Copy(changes, o.deleteDefinition(now, resource))
		}
		o.heard(migrationv1alpha1.EvidenceFromCustomResourceDefinition, now)
		o.done(definitionsListed)
		return changes
	})
}

func (o *Observer) setDefinition(now time.Time, d *definition) storageversion.Changes {
	o.heard(migrationv1alpha1.EvidenceFromCustomResourceDefinition, now)
	o.definitions[d.resource()] = struct{}{}
	return o.ledger.SetCustomResource(now, d.resource(), d.customResource())
}

func (o *Observer) deleteDefinition(now time.Time, resource schema.GroupResource) storageversion.Changes {
	o.heard(migrationv1alpha1.EvidenceFromCustomResourceDefinition, now)
	delete(o.definitions, resource)
	return o.ledger.SetCustomResource(now, resource, nil)
}

// alive notes that a watch has told of everything up to now.
func (o *Observer) alive(source migrationv1alpha1.EvidenceSource) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard(source, o.clock.Now())
}
