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
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	// together is how far apart a migration and the definition of its resource may be that are created together, as by
	// kubectl apply -f of a folder. Serving takes a moment more.
	together = 3 * time.Second
	// impatient is too soon to say of a migration's resource that it is not served.
	impatient = 10 * time.Second
)

// testTogetherWithItsDefinition has migrations that are there before the definitions of their resources. testImpossible
// has those whose definitions never come.
func testTogetherWithItsDefinition(t *testing.T, c *cluster) {
	// The group of ours is served, and the manager works, when the others begin.
	first := c.stage(t, "firstborns", "Firstborn", 3)
	c.startManager(t, "manager")
	first.migrate(t)
	first.succeeded(t, soon, 1)

	var running sync.WaitGroup
	for _, test := range []struct {
		name  string
		r     custom
		later time.Duration
	}{
		{"at once, in a group that is served", newCustom("twins", "Twin"), 0},
		{"at once, in a new group", inGroup("atonce.test", "twins", "Twin"), 0},
		{"later, in a group that is served", newCustom("siblings", "Sibling"), together},
		{"later, in a new group", inGroup("later.test", "siblings", "Sibling"), together},
	} {
		running.Go(func() { t.Run(test.name, func(t *testing.T) { c.createdTogether(t, test.r, test.later) }) })
	}
	running.Wait()
}

func inGroup(group, plural, kind string) custom {
	return custom{GroupResource: schema.GroupResource{Group: group, Resource: plural}, kind: kind}
}

// createdTogether creates a migration, and its resource so much later.
func (c *cluster) createdTogether(t *testing.T, r custom, later time.Duration) {
	t.Helper()
	const objects = 5
	c.migrate(t, r.String(), r.WithVersion(""))
	created := time.Now()
	time.Sleep(later)
	c.define(t, r)
	framework.Eventually(t, soon, func(context.Context) error { // The manager reads the documents, which may come later.
		document, err := c.Kube.Discovery().ServerResourcesForGroupVersion(r.encoding("v1"))
		if err == nil && !slices.ContainsFunc(document.APIResources, func(listed metav1.APIResource) bool {
			return listed.Name == r.Resource
		}) {
			err = fmt.Errorf("the document of %s does not have %s", r.encoding("v1"), r)
		}
		return err
	})
	served := time.Since(created)
	c.fill(t, r, "object", objects)
	m := c.ended(t, r.String(), soon)
	t.Logf(
		"the resource was served %v after its migration was created, which ended %v after that: %s",
		served,
		time.Since(created),
		words(m),
	)
	if served > impatient/2 && condition(m, v1alpha1.MigrationFailed) != nil {
		mustFail(t, m, v1alpha1.MigrationReasonResourceNotServed)
		return // so busy is the machine that the definition came too late
	}
	mustSucceed(t, m)
	if m.Status.Progress == nil || m.Status.Progress.Denied != 0 || m.Status.Progress.Processed > objects {
		t.Errorf("there are %d objects, and %s", objects, words(m))
	}
	if counts := c.encodings(t, r.GroupResource); counts[r.encoding("v1")] != objects {
		t.Errorf("objects are stored as %v", counts)
	}
	if versions := c.storedVersions(t, r); !sameStrings(versions, "v1") {
		t.Errorf("status.storedVersions is %v", versions)
	}
}
