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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func widget(generation int64, storage string, stored ...string) *Definition {
	return &Definition{UID: "u", Generation: generation, Group: "example.com", Kind: "Widget",
		StorageVersion: storage, ServedVersions: []string{"v2", "v1"}, StoredVersions: stored, Established: true}
}

func TestDefinition(t *testing.T) {
	s := newStory()
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
	s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v2"))
	s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v2"))
	expect(t, s, widgets, "", []string{widgetV1}, []string{widgetV2}, []string{widgetV2})
	if stored := s.Observe(s.now, widgets).Sightings[1].Stored; !slices.Equal(stored, []string{widgetV1, widgetV2}) {
		t.Errorf("stored: got %v", stored)
	}
	s.SetDefinition(s.tick(), widgets, widget(4, "v2", "v2"))
	expect(t, s, widgets, "", []string{widgetV2})
	s.SetDefinition(s.tick(), widgets, nil)
	if o := s.Observe(s.now, widgets); o.Presence != Deleted || len(o.Sightings) != 0 {
		t.Errorf("unexpected observation %+v", o)
	}
}

// TestDefinitionDeleted asks about a resource whose definition was deleted before the process began, and about others.
func TestDefinitionDeleted(t *testing.T) {
	earlier := func(source migrationv1alpha1.EvidenceSource) *migrationv1alpha1.StorageEvidence {
		return &migrationv1alpha1.StorageEvidence{Source: source}
	}
	custom := earlier(migrationv1alpha1.EvidenceFromCustomResourceDefinition)
	for _, test := range []struct {
		name     string
		observed Observation
		earlier  *migrationv1alpha1.StorageEvidence
		want     bool
	}{
		{"it was seen", Observation{Class: Custom, Presence: Deleted}, nil, true},
		{"nobody watched", Observation{Presence: NotServed}, custom, true},
		{"it is not established", Observation{Class: Custom, Presence: NotServed}, custom, false},
		{"not everything was read", Observation{}, custom, false},
		{"it was built in", Observation{Presence: NotServed},
			earlier(migrationv1alpha1.EvidenceFromServerDiscovery), false},
		{"nothing is known of it", Observation{Presence: NotServed}, nil, false},
	} {
		if got := test.observed.DefinitionDeleted(test.earlier); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
}

// TestCustomResourceInDocuments has documents list a custom resource as if it were built in, which they do as long as
// nobody has heard of its APIService.
func TestCustomResourceInDocuments(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	document := writes(appsV1)
	document.Resources[widgets] = Resource{
		Kind: "Widget", Versions: []string{"v2", "v1"}, Hash: widgetV1, Migratable: true,
	}
	s.looks(at(document), "a/1")
	expect(t, s, widgets, "", []string{widgetV1})
	s.SetDefinition(s.tick(), widgets, nil)
	if o := s.Observe(s.now, widgets); o.Class != Custom || o.Presence != Deleted {
		t.Errorf("unexpected observation %+v", o)
	}
}

// TestCustomResourceInALook has a look read a custom resource before its definition is known.
func TestCustomResourceInALook(t *testing.T) {
	document := writes(appsV1)
	document.Resources[widgets] = Resource{Kind: "Widget", Versions: []string{"v1"}, Hash: widgetV1, Migratable: true}
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(document), "a/1")
	s.SetDefinition(s.tick(), widgets, &Definition{UID: "crd", Generation: 1, Group: widgets.Group, Kind: "Widget",
		StorageVersion: "v1", ServedVersions: []string{"v1"}, StoredVersions: []string{"v1"}, Established: true})
	expect(t, s, widgets, "", []string{widgetV1})
	s.SetDefinition(s.tick(), widgets, nil)
	if o := s.Observe(s.now, widgets); o.Class != Custom || o.Presence != Deleted {
		t.Errorf("the definition is gone, and the observation is %+v", o)
	}
}

// TestDefinitionWithoutServedVersions defines versions that are not served. Discovery does not list the resource.
func TestDefinitionWithoutServedVersions(t *testing.T) {
	s := newStory()
	s.SetDefinition(s.tick(), widgets, &Definition{UID: "crd", Generation: 1, Group: widgets.Group, Kind: "Widget",
		StorageVersion: "v1", DefinedVersions: []string{"v1"}, StoredVersions: []string{"v1"}, Established: true})
	if o := s.Observe(s.now, widgets); o.Presence != NotServed {
		t.Errorf("the observation is %+v", o)
	}
}

// TestContentSince changes a definition. The content begins anew if it is another one, or may have been meanwhile.
func TestContentSince(t *testing.T) {
	s := newStory()
	set := func(generation int64, content string) time.Time {
		definition := widget(generation, "v2", "v2")
		definition.Content = content
		s.SetDefinition(s.tick(), widgets, definition)
		return s.Observe(s.now, widgets).ContentSince
	}
	since := set(1, "a schema")
	for _, test := range []struct {
		what       string
		generation int64
		content    string
		anew       bool
	}{
		{"a status that changed", 1, "a schema", false},
		{"a generation with the same content", 2, "a schema", false},
		{"another schema", 3, "another schema", true},
		{"generations that nobody saw", 5, "another schema", true},
	} {
		want := since
		if since = set(test.generation, test.content); since.Equal(want) == test.anew {
			t.Errorf("%s: the content is the same since %v, before it was %v", test.what, since, want)
		}
	}
}

// TestDefinitionsThatExist counts definitions. Those that were deleted do not count.
func TestDefinitionsThatExist(t *testing.T) {
	s := newStory()
	for generation := range int64(2) {
		s.SetDefinition(s.tick(), widgets, widget(generation+1, "v1", "v1"))
		s.SetDefinition(s.tick(), schema.GroupResource{Group: "example.com", Resource: "gadgets"}, widget(1, "v1", "v1"))
	}
	s.SetDefinition(s.tick(), schema.GroupResource{Group: "example.com", Resource: "gadgets"}, nil)
	if got := s.Observe(s.now, widgets).DefinitionCount; got != 1 {
		t.Errorf("%d definitions exist, want 1", got)
	}
}
