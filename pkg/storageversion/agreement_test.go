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
	"testing"
	"time"
)

func TestAgreement(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(minute int, writing ...string) Sighting {
		return Sighting{Since: noon.Add(time.Duration(minute) * time.Minute), Writing: writing}
	}
	unread := at(2, "new=")
	unread.UnreadDeparted = []Process{{Identity: "a", Incarnation: "1"}}
	for name, tc := range map[string]struct {
		run      []Sighting
		problem  *Problem
		presence Presence
		since    int
		all      bool
	}{
		"all write it": {run: []Sighting{at(1, "old="), at(2, "new="), at(3, "new=")}, presence: Served,
			since: 2, all: true},
		"a server left that nobody saw": {run: []Sighting{unread, at(3, "new=")}, presence: Served, since: 3, all: true},
		"they write another one":        {run: []Sighting{at(1, "old=")}, presence: Served, since: 10},
		"they do not agree":             {run: []Sighting{at(1, "new=", "old=")}, presence: Served, since: 10},
		"nobody was asked":              {presence: Served, since: 10},
		"not all were seen":             {run: []Sighting{at(1, "new=")}, problem: &Problem{}, presence: Served, since: 1},
		"nobody serves it":              {run: []Sighting{at(1, "new=")}, presence: NotServed, since: 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := Observation{Time: noon.Add(10 * time.Minute), Sightings: tc.run, Problem: tc.problem, Presence: tc.presence}
			since, all := o.WroteOnlyFrom("new="), o.AllWrite("new=")
			if want := noon.Add(time.Duration(tc.since) * time.Minute); !since.Equal(want) || all != tc.all {
				t.Errorf("got %v, %t, want %v, %t", since, all, want, tc.all)
			}
		})
	}
}
