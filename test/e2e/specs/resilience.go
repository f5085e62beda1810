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
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// retryAfter is how many seconds the answers 429 ask to wait. It is less than the time in which requests are counted.
const retryAfter = 5

var resilience = []suite.Spec{
	{
		Name: "a-lost-webhook-delays-migrations", Profile: suite.ProfileResilience, Controllers: migrator, Timeout: long,
		Title: "While the webhook of one object is away a migration does not end; when it is back, the migration succeeds",
		Test:  webhookAway,
	},
	{
		Name: "too-many-requests-are-obeyed", Profile: suite.ProfileResilience, Controllers: migrator, Timeout: long,
		Needs: []suite.Need{suite.NeedWebhooks},
		Title: "While writes are answered with 429 a migration goes on, with few requests, and succeeds afterwards",
		Test:  tooMany,
	},
	{
		Name: "killed-migrators-go-on", Profile: suite.ProfileResilience, Controllers: migrator, Timeout: long,
		Needs: []suite.Need{suite.NeedControl}, Disruptive: true, Slow: true,
		Title: "When a migrator that was killed in the middle is back, the migration succeeds, and each object was stored " +
			"once",
		Test: migratorKilled,
	},
	{
		Name: "killed-servers-are-survived", Profile: suite.ProfileResilience, Controllers: migrator, Timeout: long,
		Needs: []suite.Need{suite.NeedServers}, Disruptive: true,
		Title: "When each API server in turn is killed in the middle and comes back, the migration succeeds",
		Test:  serverKilled,
	},
}

// notEnded returns an error if a migration has ended.
func notEnded(migration suite.Migration) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		outcome, err := migration.Outcome(ctx)
		if err == nil && outcome.Ended {
			err = fmt.Errorf("the migration has ended: %s %s", outcome.Reason, outcome.Message)
		}
		return err
	}
}

func webhookAway(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	restore := c.LoseWebhook(ctx, r, suite.ObjectName(frozen))
	c.Store(ctx, r, v2)
	migration := c.Start(ctx, r)
	awaitBegin(ctx, c, migration, recorder)
	c.Consistently(ctx, while, notEnded(migration))
	restore(ctx)
	c.AwaitSuccess(ctx, migration)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

func tooMany(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	hook := c.Webhooks().Validation()
	// The clients of the suite obey 429 as well, so another refusal tells whether all API servers have followed.
	const words = "not yet"
	hook.Behave(webhook.Behaviour{Refuse: map[string]string{suite.ObjectName(0): words}})
	remove := c.Register(ctx, r, hook.ValidatingWebhook(""), suite.ObjectName(0), words)
	all := webhook.Behaviour{Deny: map[string]metav1.Status{}}
	for i := range few {
		all.Deny[suite.ObjectName(i)] = metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Message: "too many requests", Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
		}
	}
	hook.Behave(all)
	c.Store(ctx, r, v2)
	migration := c.Start(ctx, r)
	before := hook.Requests()
	c.Eventually(ctx, func(context.Context) error {
		if hook.Requests() == before {
			return errors.New("no write was tried")
		}
		return nil
	})
	before = hook.Requests()
	c.Consistently(ctx, while, notEnded(migration))
	// Who obeys tries each object twice at most, and some of them on the way. Who does not tries one after the other as
	// quickly as it can.
	const most = 3 * few
	if tried := hook.Requests() - before; tried > most {
		c.Fail("%d writes were tried in %s although each answer asks to wait %d s", tried, while, retryAfter)
	}
	remove(ctx)
	c.AwaitSuccess(ctx, migration)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

// inTheMiddle starts a migration of many objects, and has it interrupted when some of them are rewritten. It cannot end
// before that, because the webhook of the last object is away, and comes back only then.
func inTheMiddle(
	ctx context.Context, c *suite.Case, interrupt func(),
) (suite.Resource, suite.Migration, *suite.Recorder) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, c.Options.Objects)
	recorder := c.Record(ctx, r)
	restore := c.LoseWebhook(ctx, r, suite.ObjectName(c.Options.Objects-1))
	c.Store(ctx, r, v2)
	migration := c.Start(ctx, r)
	c.Eventually(ctx, func(context.Context) error {
		if done := recorder.Rewrites(); done < c.Options.Objects/10 {
			return fmt.Errorf("%d objects are rewritten", done)
		}
		return nil
	})
	c.Must(notEnded(migration)(ctx))
	c.Step("interrupting it when %d objects are rewritten", recorder.Rewrites())
	interrupt()
	restore(ctx)
	return r, migration, recorder
}

// outage ends something and starts it again, after the spec at the latest.
func outage(ctx context.Context, c *suite.Case, end, start func(ctx context.Context) error) {
	runs := false
	c.CleanUp(func(ctx context.Context) error {
		if runs {
			return nil
		}
		return start(ctx)
	})
	c.Must(end(ctx))
	c.Must(start(ctx))
	runs = true
}

func migratorKilled(ctx context.Context, c *suite.Case) {
	r, migration, recorder := inTheMiddle(ctx, c, func() {
		outage(ctx, c, c.Control.KillImplementation, c.Control.StartImplementation)
	})
	c.AwaitSuccess(ctx, migration)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

func serverKilled(ctx context.Context, c *suite.Case) {
	names, err := c.Control.Servers(ctx)
	c.Must(err)
	r, migration, recorder := inTheMiddle(ctx, c, func() {
		for _, name := range names { // Nobody knows which of them the migrator uses.
			outage(ctx, c,
				func(ctx context.Context) error { return c.Control.KillServer(ctx, name) },
				func(ctx context.Context) error { return c.Control.RestartServer(ctx, name, "") })
		}
	})
	// A migration during which a server was not seen may end without success. Then the next one has to succeed.
	if outcome := c.Await(ctx, migration); !outcome.Succeeded {
		c.Migrate(ctx, r)
	}
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}
