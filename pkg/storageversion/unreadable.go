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
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Unreadable is why the objects that a class of resources is known from cannot be read. The zero value means that they
// can.
type Unreadable struct {
	// Failure is the error of the last attempt, empty if they can be read.
	Failure string
	// Since is when the attempts began to fail. What changed later is not known.
	Since time.Time
}

// unreadable has the classes whose objects cannot be read.
type unreadable map[Class]Unreadable

// objectsOf names the objects from which a class of resources is known, for messages.
var objectsOf = map[Class]string{
	Custom:     "CustomResourceDefinitions",
	BuiltIn:    "identity Leases of API servers",
	Aggregated: "APIServices",
}

// knownFrom has, for each class of a resource, the classes whose objects must be readable to know about the resource.
var knownFrom = map[Class][]Class{
	Custom:     {Custom, Aggregated}, // An APIService may lead to an aggregated server in front of the definition.
	BuiltIn:    {BuiltIn},
	Aggregated: {Aggregated},
	"":         {Custom, BuiltIn, Aggregated}, // Nobody was seen to serve the resource, so it may have any class by now.
}

// SetUnreadable records that the objects that a class of resources is known from cannot be read, or that they can be
// read again: CustomResourceDefinitions of Custom, identity Leases of BuiltIn, APIServices of Aggregated. Until they
// can, what is known is out of date, and each observation that depends on them has a Problem. Another error than before
// makes no Changes.
func (l *Ledger) SetUnreadable(class Class, now Unreadable) Changes {
	_, before := l.unreadable[class]
	if now.Failure == "" {
		delete(l.unreadable, class)
	} else {
		l.unreadable[class] = now
	}
	if before == (now.Failure != "") {
		return nil
	}
	all := l.all()
	maps.DeleteFunc(all, func(resource schema.GroupResource, _ sets.Empty) bool {
		return !slices.Contains(knownFrom[l.class(resource)], class)
	})
	return l.keepObserved(all)
}

// UnreadableSince returns since when the objects that a class is known from cannot be read. It is zero if they can.
func (l *Ledger) UnreadableSince(class Class) time.Time { return l.unreadable[class].Since }

// observe adds to an observation that it is out of date. That a resource was not served, or that its definition was
// deleted, is not known any more: unknown is not absent.
func (u unreadable) observe(o *Observation) {
	for _, class := range knownFrom[o.Class] {
		since := u[class].Since
		if u[class].Failure == "" {
			continue
		}
		if o.Problem == nil {
			o.Problem = u[class].problem(objectsOf[class])
		}
		if o.Presence != Served {
			o.Presence = PresenceUnknown
		}
		if o.ReadAt.After(since) {
			o.ReadAt = since
		}
	}
}

func (u Unreadable) problem(objects string) *Problem {
	return &Problem{
		Reason: migrationv1alpha1.StateReasonDiscoveryFailed,
		Message: fmt.Sprintf("the manager has failed to read %s since %s, so the servers may write something else by "+
			"now: %s. Check its permissions, and the API server that it uses",
			objects, u.Since.UTC().Format(time.RFC3339), u.Failure),
		Since: u.Since,
	}
}
