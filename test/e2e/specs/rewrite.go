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

package specs

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var rewriting = []suite.Spec{
	{
		Name: "every-object-is-rewritten-once", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "After a success every object, in all namespaces, is stored in the new version, written once, and unchanged",
		Test:  everyObject,
	},
	{
		Name: "current-objects-are-not-written", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "A second migration succeeds and writes nothing", Test: secondMigration,
	},
	{
		Name: "large-lists-are-rewritten", Profile: suite.ProfileRewrite, Controllers: migrator, Timeout: long,
		Title: "A list of many pages is rewritten to its last object, each object once", Test: largeList,
	},
	{
		Name: "built-in-resources-are-migrated", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "A migration of a built-in resource succeeds, and does not write objects that are current", Test: builtIn,
	},
	{
		Name: "cluster-objects-are-rewritten", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "Objects without a namespace are rewritten", Test: clusterScoped,
	},
	{
		Name: "an-empty-resource-succeeds", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "A migration of a resource without objects succeeds", Test: empty,
	},
	{
		Name: "writers-keep-what-they-wrote", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "While others create, update and delete objects, no write is lost, nothing comes back, and all is migrated",
		Test:  withWriters,
	},
	{
		Name: "objects-in-deletion-are-rewritten", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "Objects that wait for their finalizers are rewritten, and stay in deletion", Test: inDeletion,
	},
	{
		Name: "no-field-is-lost", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "Objects keep the fields that only the storage version has, whichever version clients prefer",
		Test:  noFieldLost,
	},
	{
		Name: "migrations-of-one-resource-agree", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "Several migrations of one resource all succeed, and objects are still written once", Test: together,
	},
	{
		Name: "unknown-resources-fail", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "A migration of a resource that is not served does not succeed, and ends", Test: unknownResource,
	},
	{
		Name: "progress-counts-objects", Profile: suite.ProfileRewrite, Controllers: migrator,
		Features: []suite.Feature{suite.FeatureProgress},
		Title:    "A migration says how many objects it has processed", Test: progress,
	},
}

func everyObject(ctx context.Context, c *suite.Case) {
	namespaces := c.CreateNamespaces(ctx, "other")
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, 2*few, namespaces...)
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

func secondMigration(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	recorder := c.Record(ctx, r)
	c.Migrate(ctx, r)
	recorder.NotWritten(ctx)
}

func largeList(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, c.Options.Objects)
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

// builtIn migrates PodTemplates, of which most clusters have none.
func builtIn(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := suite.Resource{
		GroupResource: schema.GroupResource{Resource: "podtemplates"}, Kind: "PodTemplate", Version: v1, Namespaced: true,
	}
	c.Prepare(ctx, r)
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "template"}}
	template.Template.Spec.Containers = []corev1.Container{{Name: "none", Image: "none"}}
	_, err := c.Kube.CoreV1().PodTemplates(c.Namespace).Create(ctx, template, metav1.CreateOptions{})
	c.Must(err)
	recorder := c.Record(ctx, r)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v1)
	recorder.NotWritten(ctx)
}

func clusterScoped(ctx context.Context, c *suite.Case) {
	r := c.Define(ctx, []string{v1, v2}, suite.ClusterScoped)
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

func empty(ctx context.Context, c *suite.Case) {
	r := c.Define(ctx, []string{v1, v2})
	c.Must(c.StoreUnseen(ctx, r, v2))
	c.Migrate(ctx, r)
}

// withWriters has writers that know what they wrote last.
func withWriters(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	c.Store(ctx, r, v2)
	migration := c.Start(ctx, r)
	stop := make(chan struct{})
	var mu sync.Mutex
	var writing sync.WaitGroup
	wrote, failures := map[string]string{}, []error(nil)
	for writer := range 3 {
		writing.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond): // The cluster has others to serve.
				}
				name, note, err := write(ctx, c, r, writer, round)
				mu.Lock()
				switch {
				case err == nil:
					wrote[name] = note
				case suite.OutcomeUnknown(err):
					delete(wrote, name)
				default:
					failures = append(failures, err)
				}
				mu.Unlock()
			}
		})
	}
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }); writing.Wait() }
	defer end()
	c.AwaitSuccess(ctx, migration)
	end() // Without etcd the judge writes the objects itself.
	c.AllStored(ctx, r, v2)
	switch {
	case len(failures) > 0:
		c.Fail("a writer was refused: %v", failures[0])
	case len(wrote) == 0:
		c.Fail("nothing was written during the migration, so this spec has shown nothing")
	}
	kept := c.Content(ctx, r)
	for name, note := range wrote {
		content, exists := kept[c.Namespace+"/"+name]
		if exists != (note != "") || !strings.Contains(content, note) {
			c.Fail("%s was last written as %q, and is %q", name, note, content)
		}
	}
}

// write creates, updates and deletes objects of one writer in turn, and returns what it wrote last; nothing if it
// deleted the object.
func write(ctx context.Context, c *suite.Case, r suite.Resource, writer, round int) (name, note string, err error) {
	objects := c.Objects(r)
	old := round%few/3*3 + writer // Each object has one writer.
	name, note = suite.ObjectName(old), fmt.Sprintf("written-%d-%d", writer, round)
	switch {
	case round%10 == 9:
		name = fmt.Sprintf("new-%d-%d", writer, round)
		object := suite.NewObject(r, name)
		object.SetAnnotations(map[string]string{"note": note})
		_, err = objects.Create(ctx, object, metav1.CreateOptions{})
		return name, note, err
	case round > 10 && round%10 == 0:
		name = fmt.Sprintf("new-%d-%d", writer, round-1)
		err = objects.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil // Nobody knew whether it was created.
		}
		return name, "", err
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"note":%q}}}`, note)
	_, err = objects.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return name, note, err
}

func inDeletion(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	const finalizer = "conformance.example.com/wait"
	change := func(ctx context.Context, finalizers string) error {
		_, err := c.Objects(r).Patch(ctx, suite.ObjectName(frozen), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":[`+finalizers+`]}}`), metav1.PatchOptions{})
		return err
	}
	c.CleanUp(func(ctx context.Context) error { return change(ctx, "") }) // Before the definition is deleted.
	c.Must(change(ctx, `"`+finalizer+`"`))
	c.Must(c.Objects(r).Delete(ctx, suite.ObjectName(frozen), metav1.DeleteOptions{}))
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

// noFieldLost asks for a migration at the version that clients prefer. An object that is written there without a
// conversion webhook loses the fields that its schema does not have. A migrator may also refuse.
func noFieldLost(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	preferred := c.Define(ctx, []string{v1, v2}, func(definition *apiextensionsv1.CustomResourceDefinition) {
		definition.Spec.Versions[1].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object"}
	})
	r := preferred
	r.Version = v1
	c.Fill(ctx, r, few)
	before := c.Content(ctx, r)
	c.Await(ctx, c.Start(ctx, preferred))
	after := c.Content(ctx, r)
	for name, content := range before {
		if after[name] != content {
			c.Fail("%s does not say any more what it said before, but %s", name, after[name])
		}
	}
}

func together(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	var started []suite.Migration
	for range 6 {
		started = append(started, c.Start(ctx, r))
	}
	for _, migration := range started {
		c.AwaitSuccess(ctx, migration)
	}
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

func unknownResource(ctx context.Context, c *suite.Case) {
	r := c.Define(ctx, []string{v1})
	c.Undefine(ctx, r)
	outcome := c.Await(ctx, c.Start(ctx, r))
	if outcome.Succeeded {
		c.Fail("a migration of a resource that is not served claims success: %s", outcome.Message)
	}
}

func progress(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	c.Store(ctx, r, v2)
	const withProbe = few + 1
	if outcome := c.Migrate(ctx, r); outcome.Processed == nil || *outcome.Processed != withProbe {
		c.Fail("the migration says %s, want %d objects", outcome.Everything, withProbe)
	}
}
