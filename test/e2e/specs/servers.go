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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

const (
	// older is a release that stores policies in another encoding than the next one does.
	older  = "1.36"
	v1beta = "v1beta1"
	// disagreement is how long servers disagree at least. It is half of the patience, if that is more: some migrators
	// begin minutes late.
	disagreement = 90 * time.Second
)

var servers = []suite.Spec{
	{
		Name: "servers-that-disagree-prevent-success", Profile: suite.ProfileHA, Controllers: migrator, Timeout: long,
		Needs: []suite.Need{suite.NeedServers}, Disruptive: true, Slow: true, KubeAPIServer: ">= 1.37.0",
		Title: "While one server is a release behind and writes another encoding, no migration succeeds; " +
			"after it, all is new",
		Test: disagree,
	},
	{
		Name: "disagreement-is-recorded", Profile: suite.ProfileHA, Controllers: trigger, Timeout: long,
		Features: knowledge, Needs: []suite.Need{suite.NeedServers}, Disruptive: true, Slow: true, KubeAPIServer: ">= 1.37.0",
		Title: "While servers disagree the current encoding is Unknown, and the record has all encodings that they write",
		Test:  disagreementRecorded,
	},
}

// policies are a built-in resource that two releases store differently.
var policies = suite.Resource{
	GroupResource: schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"},
	Kind:          "MutatingAdmissionPolicy", Version: v1,
}

// upgradeHalf has one server of the older release, to which some new connections lead, and returns how to upgrade it.
func upgradeHalf(ctx context.Context, c *suite.Case) (upgrade func(ctx context.Context)) {
	names, err := c.Control.Servers(ctx)
	c.Must(err)
	last := names[len(names)-1]
	c.Step("restarting %s as release %s", last, older)
	upgraded := false
	upgrade = func(ctx context.Context) {
		if !upgraded {
			c.Step("upgrading %s", last)
			c.Must(c.Control.RestartServer(ctx, last, ""))
			upgraded = true
		}
	}
	c.CleanUp(func(ctx context.Context) error { upgrade(ctx); return nil })
	c.Must(c.Control.RestartServer(ctx, last, older))
	c.AwaitDisagreement(ctx, policies, v1, v1beta)
	return upgrade
}

// createPolicies creates policies that change nothing, each on a connection of its own: every server creates some.
func createPolicies(ctx context.Context, c *suite.Case, count int) {
	shared := c.Kube.AdmissionregistrationV1().MutatingAdmissionPolicies()
	for i := range count {
		policy := c.IdlePolicy(i)
		client, err := kubernetes.NewForConfig(c.NewConnection())
		c.Must(err)
		_, err = client.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
		c.Must(err)
		c.CleanUp(func(ctx context.Context) error { return shared.Delete(ctx, policy.Name, metav1.DeleteOptions{}) })
	}
	if !c.Has(ctx, suite.NeedEtcd) {
		return
	}
	encodings, err := c.Encodings(ctx, policies)
	c.Must(err)
	if len(encodings[policies.Encoding(v1beta)]) == 0 {
		c.Fail("no policy is stored in %s, so this spec would show nothing", v1beta)
	}
}

func disagree(ctx context.Context, c *suite.Case) {
	c.Prepare(ctx, policies)
	upgrade := upgradeHalf(ctx, c)
	createPolicies(ctx, c, few)
	migration := c.Start(ctx, policies)
	c.Consistently(ctx, max(disagreement, c.Options.Patience/2), func(ctx context.Context) error {
		return suite.NoSuccess(ctx, migration)
	})
	upgrade(ctx)
	// A migration that was asked for while servers disagreed may have ended.
	c.Eventually(ctx, func(ctx context.Context) error {
		outcome, err := migration.Outcome(ctx)
		switch {
		case err != nil:
			return err
		case outcome.Ended && !outcome.Succeeded:
			migration = c.Start(ctx, policies)
			return errors.New("the migration ended without success: " + outcome.Reason)
		case !outcome.Ended:
			return fmt.Errorf("the migration has not ended: %s %s", outcome.Reason, outcome.Message)
		}
		return nil
	})
	c.AllStored(ctx, policies, v1)
}

func disagreementRecorded(ctx context.Context, c *suite.Case) {
	c.Prepare(ctx, policies)
	upgrade := upgradeHalf(ctx, c)
	createPolicies(ctx, c, few)
	c.Knows(ctx, policies, func(k suite.Knowledge) error {
		if k.Current != suite.UnknownEncoding || !k.MayBe(policies.Hash(v1)) || !k.MayBe(policies.Hash(v1beta)) {
			return fmt.Errorf("servers write %s and %s, and the record says %+v", v1, v1beta, k)
		}
		return nil
	})
	upgrade(ctx)
	c.Migrate(ctx, policies)
	c.AllStored(ctx, policies, v1)
	c.Knows(ctx, policies, func(k suite.Knowledge) error {
		if k.Current != policies.Hash(v1) {
			return fmt.Errorf("all servers write %s, and the record says %+v", v1, k)
		}
		return nil
	})
}
