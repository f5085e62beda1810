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
	"sync"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var knowledge = []suite.Feature{suite.FeatureKnowledge}

var knowing = []suite.Spec{
	{
		Name: "a-new-resource-is-recorded", Profile: suite.ProfileKnowledge, Controllers: trigger, Features: knowledge,
		Title: "A new resource gets a record, with the hash of the discovery document as the current one", Test: recorded,
	},
	{
		Name: "a-change-starts-a-migration", Profile: suite.ProfileKnowledge, Controllers: both, Timeout: long,
		Features: []suite.Feature{suite.FeatureKnowledge, suite.FeatureTrigger},
		Title:    "A change of the storage version starts a migration, after which only the new one is recorded",
		Test:     starts,
	},
	{
		Name: "old-encodings-stay-until-proven", Profile: suite.ProfileKnowledge, Controllers: both, Features: knowledge,
		Title: "While an object is stored in an old encoding, the record has it, also after a migration that failed",
		Test:  stays,
	},
	{
		Name: "records-never-underestimate", Profile: suite.ProfileKnowledge, Controllers: both, Features: knowledge,
		Needs: []suite.Need{suite.NeedEtcd}, Timeout: long,
		Title: "At no moment of changes to and fro do the bytes in etcd have an encoding that the record excludes",
		Test:  neverUnderestimates,
	},
	{
		Name: "a-lost-record-begins-with-unknown", Profile: suite.ProfileKnowledge, Controllers: trigger,
		Features: knowledge, Timeout: long,
		Title: "After its record was deleted, a resource with denied old objects is Unknown, not current",
		Test:  forgotten,
	},
	{
		Name: "edited-stored-versions-prove-nothing", Profile: suite.ProfileKnowledge, Controllers: trigger,
		Features: []suite.Feature{suite.FeatureKnowledge, suite.FeatureHistory}, Timeout: long,
		Title: "When somebody shortens status.storedVersions by hand, the record keeps the old encoding", Test: edited,
	},
	{
		Name: "records-have-a-heartbeat", Profile: suite.ProfileKnowledge, Controllers: trigger, Features: knowledge,
		Title: "A new record says when it was known to be right", Test: heartbeat,
	},
}

func recorded(ctx context.Context, c *suite.Case) {
	r := c.Define(ctx, []string{v1})
	c.Knows(ctx, r, func(k suite.Knowledge) error {
		if !k.Recorded || k.Current != r.Hash(v1) || !k.MayBe(r.Hash(v1)) {
			return fmt.Errorf("the record says %+v, want %s to be current", k, r.Hash(v1))
		}
		return nil
	})
}

func starts(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.KnowsOnly(ctx, r, v1)
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	c.Store(ctx, r, v2)
	c.KnowsOnly(ctx, r, v2)
	c.AllStored(ctx, r, v2)
	recorder.RewrittenOnce(ctx)
}

// keepsOld wants a record to have the old encoding at every look.
func keepsOld(c *suite.Case, r suite.Resource) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		k, err := c.Implementation.Knowledge(ctx, r.GroupResource)
		if err == nil && !k.MayBe(r.Hash(v1)) {
			err = fmt.Errorf("an object is stored in %s, which the record excludes: %+v", v1, k)
		}
		return err
	}
}

// knowsCurrent waits until the record has an encoding as the current one.
func knowsCurrent(ctx context.Context, c *suite.Case, r suite.Resource, version string) {
	c.Knows(ctx, r, func(k suite.Knowledge) error {
		if k.Current != r.Hash(version) {
			return fmt.Errorf("the record says %+v, want %s to be current", k, r.Hash(version))
		}
		return nil
	})
}

func stays(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.KnowsOnly(ctx, r, v1)
	c.Fill(ctx, r, few)
	recorder := c.Record(ctx, r)
	allow := c.Deny(ctx, r, suite.ObjectName(frozen))
	c.Store(ctx, r, v2)
	migration := c.Start(ctx, r)
	knowsCurrent(ctx, c, r, v2)
	if outcome := c.AwaitAtMost(ctx, migration, c.Options.Patience/2); outcome.Ended {
		c.Step("the migration ended: %s %s", outcome.Reason, outcome.Message)
	}
	c.Consistently(ctx, while, keepsOld(c, r))
	if recorder.WasRewritten(suite.ObjectName(frozen)) {
		c.Fail("the object was rewritten, so this spec has shown nothing")
	}
	allow(ctx)
}

func neverUnderestimates(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.KnowsOnly(ctx, r, v1)
	c.Fill(ctx, r, 2*few)
	stop := make(chan struct{})
	var looking sync.WaitGroup
	var found error
	looks := 0
	looking.Go(func() {
		for found == nil {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				found = suite.IgnoreFlakes(c.Underestimate(ctx, r, v1, v2))
				looks++
			}
		}
	})
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }); looking.Wait() }
	defer end()
	for _, version := range []string{v2, v1, v2} {
		c.Must(c.StoreUnseen(ctx, r, version))
		// A migration whose target changes may end without success. Then the next one has to succeed.
		if outcome := c.Await(ctx, c.Start(ctx, r)); !outcome.Succeeded {
			c.Migrate(ctx, r)
		}
	}
	c.Must(c.StoreUnseen(ctx, r, v1))
	c.KnowsOnly(ctx, r, v1)
	end()
	c.Must(found)
	c.AllStored(ctx, r, v1)
	c.Step("looked %d times", looks)
}

func forgotten(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	// The record that is deleted says more than that nothing is known.
	c.KnowsOnly(ctx, r, v1)
	c.Fill(ctx, r, few)
	c.Deny(ctx, r, suite.ObjectName(frozen))
	c.Store(ctx, r, v2)
	knowsCurrent(ctx, c, r, v2)
	c.Must(keepsOld(c, r)(ctx))
	c.Must(c.Implementation.Forget(ctx, r.GroupResource))
	c.Knows(ctx, r, func(k suite.Knowledge) error {
		if !k.Recorded || !slices.Contains(k.Persisted, suite.UnknownEncoding) {
			return fmt.Errorf("the new record says %+v, want %s", k, suite.UnknownEncoding)
		}
		return nil
	})
	c.Consistently(ctx, while, keepsOld(c, r))
}

func edited(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2, v3})
	c.KnowsOnly(ctx, r, v1)
	c.Fill(ctx, r, few)
	c.Deny(ctx, r)
	c.Store(ctx, r, v2)
	knowsCurrent(ctx, c, r, v2)
	c.Must(keepsOld(c, r)(ctx))
	c.Must(c.SetStoredVersions(ctx, r, v2))
	// Who knows of the next version has looked at the definition after the edit.
	c.Store(ctx, r, v3)
	knowsCurrent(ctx, c, r, v3)
	c.Consistently(ctx, while, keepsOld(c, r))
}

func heartbeat(ctx context.Context, c *suite.Case) {
	r := c.Define(ctx, []string{v1})
	created, err := c.Created(ctx, r)
	c.Must(err)
	before := created.Add(-time.Minute) // The clocks of two hosts differ.
	c.Knows(ctx, r, func(k suite.Knowledge) error {
		if k.Heartbeat.Before(before) {
			return fmt.Errorf("the record was last right at %s", k.Heartbeat)
		}
		return nil
	})
}
