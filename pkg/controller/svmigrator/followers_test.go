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

package svmigrator

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// oneIsAway is an Observer of servers one of which cannot be asked.
type oneIsAway struct {
	Observer
	away  error
	asked int
}

func (o *oneIsAway) Observe(resource schema.GroupResource) storageversion.Observation {
	return storageversion.Observation{Resource: resource}
}

func (o *oneIsAway) CanAskEach() error { return o.away }

func (o *oneIsAway) AskEach(context.Context, func(context.Context, documents.Reader) error) error {
	o.asked++
	return o.away
}

// TestNoServerIsAskedWhileOneIsAway has a server that cannot be asked, and counts what the others are asked. Thousands
// of resources may wait for that server.
func TestNoServerIsAskedWhileOneIsAway(t *testing.T) {
	o := &oneIsAway{away: errors.New("away")}
	e, target := &environment{observer: o}, &migrationv1alpha1.MigrationTarget{}
	if err := e.everyServerFollows(t.Context(), widgets, target); !errors.Is(err, o.away) || o.asked > 0 {
		t.Errorf("the others were asked %d times, and the error is %v", o.asked, err)
	}
	o.away = nil
	if err := e.everyServerFollows(t.Context(), widgets, target); err != nil || o.asked != 1 {
		t.Errorf("all were asked %d times, and the error is %v", o.asked, err)
	}
}

// TestGenerationsThatSayTheSame has a definition change all the time, and its storage version stay.
func TestGenerationsThatSayTheSame(t *testing.T) {
	const v1, v2 = "v1=", "v2="
	sighting := func(generation int64, hash string) storageversion.Sighting {
		return storageversion.Sighting{Writing: []string{hash}, Evidence: migrationv1alpha1.StorageEvidence{
			CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{UID: "crd", Generation: generation},
		}}
	}
	since := noon
	f := &followers{}
	followed := func(sightings ...storageversion.Sighting) time.Time {
		return f.stateOf(&storageversion.Observation{Resource: widgets, Sightings: sightings}).since
	}
	sightings := func(all ...storageversion.Sighting) []storageversion.Sighting { return all }
	for name, test := range map[string]struct {
		before, now []storageversion.Sighting
		want        time.Time
	}{
		"the same generation":       {nil, sightings(sighting(2, v2), sighting(3, v1)), since},
		"later ones say the same":   {nil, sightings(sighting(3, v1), sighting(4, v1), sighting(5, v1)), since},
		"another version is stored": {nil, sightings(sighting(3, v1), sighting(4, v2)), time.Time{}},
		"the version went and came": {nil, sightings(sighting(3, v1), sighting(4, v2), sighting(5, v1)), time.Time{}},
		"nobody watched in between": {nil, sightings(sighting(5, v1)), time.Time{}},
		"the sighting is not kept any more": {
			sightings(sighting(3, v1), sighting(4, v1), sighting(5, v1)), sightings(sighting(5, v1), sighting(6, v1)), since,
		},
	} {
		f.known.Store(widgets, &followState{definition: identify(sighting(3, v1)), since: since})
		followed(test.before...)
		if got := followed(test.now...); !got.Equal(test.want) {
			t.Errorf("%s: followed since %v, want %v", name, got, test.want)
		}
	}
	f.known.Store(widgets, &followState{definition: identify(sighting(3, v1)), since: since, served: []string{"v1", "v2"}})
	if got := followed(sighting(3, v1), sighting(4, v1)); !got.IsZero() {
		t.Errorf("a version is not served any more, and the servers count as followers since %v", got)
	}
}
