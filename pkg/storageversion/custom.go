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
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

type customResource struct {
	CustomResource
	deleted bool
}

// SetCustomResource tells the state of the CustomResourceDefinition of the resource; nil says that there is none. Whether
// states in between went unseen shows in the generation.
func (l *Ledger) SetCustomResource(now time.Time, resource schema.GroupResource, definition *CustomResource) Changes {
	previous, known := l.custom[resource]
	changes := Changes{}
	if definition == nil {
		if known && !previous.deleted {
			l.breakRun(resource)
			l.custom[resource] = customResource{CustomResource: previous.CustomResource, deleted: true}
			changes.add(resource)
		}
		return changes
	}
	sighting := sightingOfDefinition(definition)
	if run := l.runs[resource]; len(run) > 0 && !Continues(run[len(run)-1].Evidence, sighting.Evidence) {
		l.breakRun(resource)
	}
	l.custom[resource] = customResource{CustomResource: *definition}
	l.append(now, resource, sighting)
	changes.add(resource)
	return changes
}

func sightingOfDefinition(definition *CustomResource) Sighting {
	hash := func(version string) string {
		return Hash(schema.GroupVersion{Group: definition.Group, Version: version}, definition.Kind)
	}
	stored := definition.StoredVersions[:min(len(definition.StoredVersions), migrationv1alpha1.MaxEvidenceStoredVersions)]
	sighting := Sighting{
		Evidence: migrationv1alpha1.StorageEvidence{
			Source: migrationv1alpha1.EvidenceFromCustomResourceDefinition,
			CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{
				UID:            definition.UID,
				Generation:     definition.Generation,
				StoredVersions: slices.Clone(stored),
			},
		},
		Writing: []string{hash(definition.StorageVersion)},
	}
	for _, version := range stored {
		sighting.Stored = append(sighting.Stored, hash(version))
	}
	return sighting
}

func (l *Ledger) observeCustom(o *Observation) {
	definition := l.custom[o.Resource]
	o.Looked = o.Time
	switch {
	case definition.deleted:
		o.Presence = Deleted
		return
	case definition.Established:
		o.Presence = Served
	default:
		o.Presence = NotServed
	}
	o.Served = slices.Clone(definition.ServedVersions)
	o.Versions = map[string]string{}
	for _, versions := range [][]string{definition.ServedVersions, definition.StoredVersions, {definition.StorageVersion}} {
		for _, version := range versions {
			groupVersion := schema.GroupVersion{Group: definition.Group, Version: version}
			o.Versions[Hash(groupVersion, definition.Kind)] = groupVersion.String()
		}
	}
}
