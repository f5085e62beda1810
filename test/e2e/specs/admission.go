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
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var admission = []suite.Spec{
	{
		Name: "denied-objects-prevent-success", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "A migration does not succeed while the API server refuses one of its objects", Test: deniedNoSuccess,
	},
	{
		Name: "denied-objects-are-named", Profile: suite.ProfileRewrite, Controllers: migrator,
		Features: []suite.Feature{suite.FeatureDeniedObjects},
		Title:    "A denied object is named with the server's words, and all others are rewritten", Test: deniedNamed,
	},
	{
		Name: "denied-objects-can-be-mended", Profile: suite.ProfileRewrite, Controllers: migrator,
		Title: "When the refusal has ended, the migration, or the next one, rewrites what was left, and succeeds",
		Test:  deniedMended,
	},
	{
		Name: "mutating-admission-changes-nothing", Profile: suite.ProfileRewrite, Controllers: migrator,
		KubeAPIServer: ">= 1.37.0",
		Title: "No object is changed by a migration, also where mutating admission changes all objects that are " +
			"updated",
		Test: mutated,
	},
}

func denied(ctx context.Context, c *suite.Case) (suite.Resource, *suite.Recorder, func(context.Context)) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	allow := c.Deny(ctx, r, suite.ObjectName(frozen))
	c.Store(ctx, r, v2)
	return r, recorder, allow
}

func deniedNoSuccess(ctx context.Context, c *suite.Case) {
	r, recorder, _ := denied(ctx, c)
	migration := c.Start(ctx, r)
	awaitBegin(ctx, c, migration, recorder)
	outcome := c.AwaitAtMost(ctx, migration, c.Options.Patience/2)
	if recorder.WasRewritten(suite.ObjectName(frozen)) {
		c.Fail("the object was rewritten, so this spec has shown nothing")
	}
	if outcome.Succeeded {
		c.Fail("the migration claims success: %s", outcome.Message)
	}
}

// awaitBegin waits until the migration has rewritten an object, or has ended: some begin late.
func awaitBegin(ctx context.Context, c *suite.Case, migration suite.Migration, recorder *suite.Recorder) {
	c.Eventually(ctx, func(ctx context.Context) error {
		outcome, err := migration.Outcome(ctx)
		if err == nil && !outcome.Ended && recorder.Rewrites() == 0 {
			err = errors.New("no object is rewritten")
		}
		return err
	})
}

func deniedNamed(ctx context.Context, c *suite.Case) {
	r, recorder, _ := denied(ctx, c)
	outcome := c.Await(ctx, c.Start(ctx, r))
	name := types.NamespacedName{Namespace: c.Namespace, Name: suite.ObjectName(frozen)}
	switch words, named := outcome.Denied[name]; {
	case outcome.Succeeded:
		c.Fail("the migration claims success: %s", outcome.Message)
	case !named || len(outcome.Denied) != 1:
		c.Fail("the migration names %v as denied, want only %s", outcome.Denied, name)
	case !strings.Contains(words, suite.Denial):
		c.Fail("the migration has the words %q, the API server said %q", words, suite.Denial)
	}
	recorder.Unchanged(ctx)
	if got := recorder.Rewrites(); got != few-1 {
		c.Fail("%d objects were rewritten, want all of %d but the denied one", got, few)
	}
}

func deniedMended(ctx context.Context, c *suite.Case) {
	r, recorder, allow := denied(ctx, c)
	migration := c.Start(ctx, r)
	awaitBegin(ctx, c, migration, recorder)
	c.AwaitAtMost(ctx, migration, c.Options.Patience/2)
	allow(ctx)
	// It may have ended, or end now, without success. Then the next one has to succeed.
	if outcome := c.Await(ctx, migration); !outcome.Succeeded {
		c.Migrate(ctx, r)
	}
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

func mutated(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	c.Mutate(ctx, r)
	c.Store(ctx, r, v2)
	outcome := c.Await(ctx, c.Start(ctx, r))
	recorder.Unchanged(ctx)
	if outcome.Succeeded {
		c.AllStored(ctx, r, v2)
	}
}
