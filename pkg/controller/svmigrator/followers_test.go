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

func (o *oneIsAway) Unasked() error { return o.away }

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
