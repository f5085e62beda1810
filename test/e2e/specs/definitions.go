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
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

var definitions = []suite.Spec{
	{
		Name: "old-versions-can-be-dropped", Profile: suite.ProfileCRD, Controllers: both, Timeout: long,
		Features: []suite.Feature{suite.FeaturePruning},
		Title:    "After a success status.storedVersions is pruned, the old version can be dropped, all objects are readable",
		Test:     dropped,
	},
	{
		Name: "stored-versions-stay-after-a-failure", Profile: suite.ProfileCRD, Controllers: migrator,
		Title: "While an object is stored in an old version, status.storedVersions has that version", Test: notPruned,
	},
	{
		Name: "versions-can-follow-each-other", Profile: suite.ProfileCRD, Controllers: migrator, Timeout: long,
		Title: "After two changes of the storage version a migration leaves only the last one", Test: twoChanges,
	},
	{
		Name: "changes-can-be-taken-back", Profile: suite.ProfileCRD, Controllers: migrator, Timeout: long,
		Title: "After a change that was migrated and taken back, the next migration goes back to the old version",
		Test:  takenBack,
	},
	{
		Name: "conversion-webhooks-convert", Profile: suite.ProfileCRD, Controllers: migrator, Timeout: long,
		Needs: []suite.Need{suite.NeedWebhooks},
		Title: "Objects whose versions have different fields are converted, and are readable without the webhook afterwards",
		Test:  converted,
	},
	{
		Name: "deleted-definitions-end-migrations", Profile: suite.ProfileCRD, Controllers: migrator,
		Title: "When a definition is deleted in the middle, a migration of its resource ends, or goes away",
		Test:  undefined,
	},
}

func dropped(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	c.Eventually(ctx, func(ctx context.Context) error {
		versions, err := c.StoredVersions(ctx, r)
		if err == nil && !slices.Equal(versions, []string{v2}) {
			err = fmt.Errorf("status.storedVersions is %v, want only %s", versions, v2)
		}
		return err
	})
	c.AllStored(ctx, r, v2)
	c.Must(c.DropVersions(ctx, r, v1))
	allReadable(ctx, c, r)
}

func allReadable(ctx context.Context, c *suite.Case, r suite.Resource) {
	const withProbe = few + 1
	if got := len(c.Content(ctx, r)); got != withProbe {
		c.Fail("%d objects are readable, want %d", got, withProbe)
	}
}

func notPruned(ctx context.Context, c *suite.Case) {
	r, recorder, _ := denied(ctx, c)
	migration := c.Start(ctx, r)
	hasOld := func(ctx context.Context) error {
		versions, err := c.StoredVersions(ctx, r)
		if err == nil && !slices.Contains(versions, v1) {
			err = fmt.Errorf("status.storedVersions is %v, and objects are stored in %s", versions, v1)
		}
		return err
	}
	awaitBegin(ctx, c, migration, recorder)
	c.AwaitAtMost(ctx, migration, c.Options.Patience/2)
	c.Consistently(ctx, while, hasOld)
	if recorder.WasRewritten(suite.ObjectName(frozen)) {
		c.Fail("the object was rewritten, so this spec has shown nothing")
	}
}

func twoChanges(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2, v3})
	c.Fill(ctx, r, few)
	c.Store(ctx, r, v2)
	c.Store(ctx, r, v3)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v3)
}

func takenBack(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v1)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v1)
	recorder.RewrittenOnce(ctx)
}

// The names of one field in two versions.
var fieldNames = map[string]string{v1: "host", v2: "address"}

func converted(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	hooks := c.Webhooks()
	hook := hooks.Conversion(webhook.RenamedField(fieldNames))
	r := c.Define(ctx, []string{v1, v2}, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Conversion = hook.CustomResourceConversion()
	})
	// While the webhook is there: without it nobody can delete objects of the old version, nor their definition.
	c.CleanUp(func(ctx context.Context) error { c.Undefine(ctx, r); return nil })
	for i := range few {
		object := suite.NewObject(r, suite.ObjectName(i))
		c.Must(unstructured.SetNestedField(object.Object, fmt.Sprint("host-", i), "spec", fieldNames[v2]))
		_, err := c.Objects(r).Create(ctx, object, metav1.CreateOptions{})
		c.Must(err)
	}
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	c.Migrate(ctx, r)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
	c.Step("closing the webhook")
	c.Must(hooks.Close())
	allReadable(ctx, c, r)
}

func undefined(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	c.LoseWebhook(ctx, r, suite.ObjectName(frozen)) // It keeps the migration from ending.
	c.Store(ctx, r, v2)
	migration := c.Start(ctx, r)
	awaitBegin(ctx, c, migration, recorder)
	c.Must(notEnded(migration)(ctx))
	c.Undefine(ctx, r)
	c.Await(ctx, migration) // It may succeed: no object is left.
}
