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
)

func widget(generation int64, storage string, stored ...string) *CustomResource {
	return &CustomResource{UID: "u", Generation: generation, Group: "example.com", Kind: "Widget",
		StorageVersion: storage, ServedVersions: []string{"v2", "v1"}, StoredVersions: stored, Established: true}
}

func TestCustomResource(t *testing.T) {
	s := newStory()
	s.SetCustomResource(s.tick(), widgets, widget(1, "v1", "v1"))
	s.SetCustomResource(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
	s.SetCustomResource(s.tick(), widgets, widget(2, "v2", "v2"))
	s.SetCustomResource(s.tick(), widgets, widget(2, "v2", "v2"))
	expect(t, s, widgets, "", []string{widgetV1}, []string{widgetV2}, []string{widgetV2})
	if stored := s.Observe(s.now, widgets).Sightings[1].Stored; !slices.Equal(stored, []string{widgetV1, widgetV2}) {
		t.Errorf("stored: got %v", stored)
	}
	s.SetCustomResource(s.tick(), widgets, widget(4, "v2", "v2"))
	expect(t, s, widgets, "", []string{widgetV2})
	s.SetCustomResource(s.tick(), widgets, nil)
	if o := s.Observe(s.now, widgets); o.Presence != Deleted || len(o.Sightings) != 0 {
		t.Errorf("unexpected observation %+v", o)
	}
}

// TestCustomResourceInDocuments has documents list a custom resource as if it were built in, which they do as long as
// nobody has heard of its APIService.
func TestCustomResourceInDocuments(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.SetCustomResource(s.tick(), widgets, widget(1, "v1", "v1"))
	document := writes(appsV1)
	document.Resources[widgets] = Resource{
		Kind: "Widget", Versions: []string{"v2", "v1"}, Hash: widgetV1, Migratable: true,
	}
	s.looks(at(document), "a/1")
	expect(t, s, widgets, "", []string{widgetV1})
	s.SetCustomResource(s.tick(), widgets, nil)
	if o := s.Observe(s.now, widgets); o.Class != Custom || o.Presence != Deleted {
		t.Errorf("unexpected observation %+v", o)
	}
}
