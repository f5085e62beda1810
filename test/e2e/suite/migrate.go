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

package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onsi/ginkgo/v2"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Start asks the implementation for a migration.
func (c *Case) Start(ctx context.Context, r Resource) Migration {
	ginkgo.GinkgoHelper()
	c.Step("asking for a migration of %s", r)
	migration, err := c.Implementation.Start(ctx, r.At())
	c.Must(err)
	cleanUp(migration.Remove)
	return migration
}

// Await waits until a migration has ended, and returns its outcome.
func (c *Case) Await(ctx context.Context, migration Migration) Outcome {
	ginkgo.GinkgoHelper()
	var outcome Outcome
	c.Eventually(ctx, func(ctx context.Context) (err error) {
		outcome, err = migration.Outcome(ctx)
		if err == nil && !outcome.Ended {
			err = fmt.Errorf("the migration has not ended: %s %s", outcome.Reason, outcome.Message)
		}
		return err
	})
	c.Step("the migration ended: succeeded %t, %s %s", outcome.Succeeded, outcome.Reason, outcome.Message)
	return outcome
}

// AwaitAtMost waits until a migration has ended, but no longer than that. Some migrators try denied objects for ever.
func (c *Case) AwaitAtMost(ctx context.Context, migration Migration, period time.Duration) Outcome {
	ginkgo.GinkgoHelper()
	var outcome Outcome
	err := wait.PollUntilContextTimeout(ctx, poll, period, true, func(ctx context.Context) (done bool, err error) {
		outcome, err = migration.Outcome(ctx)
		return outcome.Ended, IgnoreFlakes(err)
	})
	if !wait.Interrupted(err) || ctx.Err() != nil {
		c.Must(err)
	}
	return outcome
}

// Migrate asks for a migration and waits for its success.
func (c *Case) Migrate(ctx context.Context, r Resource) Outcome {
	ginkgo.GinkgoHelper()
	return c.AwaitSuccess(ctx, c.Start(ctx, r))
}

// AwaitSuccess waits for the success of a migration.
func (c *Case) AwaitSuccess(ctx context.Context, migration Migration) Outcome {
	ginkgo.GinkgoHelper()
	outcome := c.Await(ctx, migration)
	if !outcome.Succeeded {
		c.Fail("the migration did not succeed: %s %s", outcome.Reason, outcome.Message)
	}
	return outcome
}

// NoSuccess returns an error if a migration claims success.
func NoSuccess(ctx context.Context, migration Migration) error {
	outcome, err := migration.Outcome(ctx)
	if err == nil && outcome.Succeeded {
		err = errors.New("the migration claims success: " + outcome.Message)
	}
	return err
}

// Knows waits until what is recorded about a resource satisfies check.
func (c *Case) Knows(ctx context.Context, r Resource, check func(Knowledge) error) Knowledge {
	ginkgo.GinkgoHelper()
	var known Knowledge
	c.Eventually(ctx, func(ctx context.Context) (err error) {
		if known, err = c.Implementation.Knowledge(ctx, r.GroupResource); err != nil {
			return err
		}
		return check(known)
	})
	return known
}

// KnowsOnly waits until it is recorded that all objects of a resource are stored in one version.
func (c *Case) KnowsOnly(ctx context.Context, r Resource, version string) {
	ginkgo.GinkgoHelper()
	c.Knows(ctx, r, func(k Knowledge) error {
		if !k.IsOnly(r.Hash(version)) {
			return fmt.Errorf("the record says %+v, want only %s (%s)", k, r.Hash(version), version)
		}
		return nil
	})
}
