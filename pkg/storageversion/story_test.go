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
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

var (
	start       = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	jobs        = schema.GroupResource{Group: "batch", Resource: "jobs"}
	widgets     = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	flunders    = schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}

	appsV1      = Hash(schema.GroupVersion{Group: "apps", Version: "v1"}, "Deployment")
	appsV1beta1 = Hash(schema.GroupVersion{Group: "apps", Version: "v1beta1"}, "Deployment")
	batchV1     = Hash(schema.GroupVersion{Group: "batch", Version: "v1"}, "Job")
	widgetV1    = Hash(schema.GroupVersion{Group: "example.com", Version: "v1"}, "Widget")
	widgetV2    = Hash(schema.GroupVersion{Group: "example.com", Version: "v2"}, "Widget")
	flunderV1   = Hash(schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}, "Flunder")
)

const (
	unseen = migrationv1alpha1.StateReasonServersUnseen
	failed = migrationv1alpha1.StateReasonDiscoveryFailed
)

// at returns documents by address: the first is from 10.0.0.1, the second from 10.0.0.2, and so on.
func at(documents ...Document) map[string]Document {
	all := map[string]Document{}
	for i, document := range documents {
		all[fmt.Sprintf("10.0.0.%d", i+1)] = document
	}
	return all
}

// story gives a Ledger facts, five seconds after each other.
type story struct {
	*Ledger
	now time.Time
}

func newStory() *story {
	return &story{Ledger: NewLedger(time.Minute), now: start}
}

func (s *story) tick() time.Time {
	s.now = s.now.Add(confirmAfter)
	return s.now
}

// servers are written as identity/incarnation. Etcd was asked just before that.
func (s *story) servers(unbroken bool, living ...string) {
	s.Confirm(s.tick())
	s.SetServers(s.now, processesOf(living), unbroken)
}

func processesOf(names []string) []Process {
	var all []Process
	for _, name := range names {
		identity, incarnation, _ := strings.Cut(name, "/")
		all = append(all, Process{Identity: identity, Incarnation: incarnation})
	}
	return all
}

// looks at servers that live, directly, at addresses that have documents.
func (s *story) looks(documents map[string]Document, living ...string) {
	s.SetLook(s.tick(), Look{LivingServers: LivingServers{Living: processesOf(living)}, Documents: documents})
}

// looksThroughBalancer reads the document of any one of the servers that live.
func (s *story) looksThroughBalancer(document Document, living ...string) {
	s.SetLook(s.tick(), Look{LivingServers: LivingServers{Living: processesOf(living)},
		Documents: map[string]Document{"balancer": document}})
}

// writes is the document of a server that writes Deployments in that encoding.
func writes(hash string) Document {
	return Document{Version: "v1.37.1", Resources: map[schema.GroupResource]Resource{
		deployments: {Kind: "Deployment", Versions: []string{"v1", "v1beta1"}, Hash: hash, Migratable: true},
		jobs:        {Kind: "Job", Versions: []string{"v1"}, Hash: batchV1, Migratable: true},
	}}
}

// writing is what the sightings of a resource's run say is written.
func (s *story) writing(resource schema.GroupResource) [][]string {
	var all [][]string
	for _, sighting := range s.Observe(s.now, resource).Sightings {
		all = append(all, sighting.Writing)
	}
	return all
}

func (s *story) problem(resource schema.GroupResource) string {
	if problem := s.Observe(s.now, resource).Problem; problem != nil {
		return problem.Reason
	}
	return ""
}

func expect(t *testing.T, s *story, resource schema.GroupResource, problem string, writing ...[]string) {
	t.Helper()
	if got := s.problem(resource); got != problem {
		t.Errorf("problem of %v: got %q, want %q", resource, got, problem)
	}
	if diff := cmp.Diff(writing, s.writing(resource)); diff != "" {
		t.Errorf("sightings of %v (-want +got):\n%s", resource, diff)
	}
}
