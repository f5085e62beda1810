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

package plan

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

func resource(name string, attention assess.Attention, reason, next, verb string) assess.Resource {
	return assess.Resource{
		GroupResource: schema.ParseGroupResource(name), Name: name, Attention: attention, Safe: attention == assess.None,
		Stored: []string{"example.com/v1", "example.com/v2"}, Written: "example.com/v2", Reason: reason, Next: next,
		Verb: verb,
	}
}

// inContext is what a person sees who has chosen a cluster: each command has the flag that chooses it.
var inContext = strings.NewReplacer("kubectl svm ", "kubectl svm --context=a ", "kubectl ", "kubectl --context=a ")

func TestScreens(t *testing.T) {
	running := resource("cogs.example.com", assess.Wait, "MigrationRunning", "the migration ends in 5m", "")
	waits := resource("gems.example.com", assess.Wait, "MigrationQueued", "the migration waits: AwaitingStorageSpace", "")
	waits.Migration = &assess.Migration{State: "Waiting", Reason: "AwaitingStorageSpace"}
	leads := assess.Manager{Running: true, Message: "The manager a leads."}
	observes := assess.Manager{Running: true, ObservesOnly: true, Message: "The manager a only observes."}
	for _, test := range []struct {
		name      string
		manager   assess.Manager
		resources []assess.Resource
		want      string
	}{
		{"nothing to do", leads,
			[]assess.Resource{resource("a.example.com", assess.None, "OnlyCurrentEncodingPersisted", "", "")},
			"Nothing to do: every object is stored in the version that the servers write.\n"},
		{"nothing is known to be due", assess.Manager{Message: "No manager leads."}, nil,
			"It is not known whether a migration is due. When a manager last looked, every object was stored in the " +
				"version that the servers write. No manager leads.\n"},
		{"before a migration", leads, []assess.Resource{
			resource("axes.example.com", assess.Wait, "Settling", "the servers count as agreed in 1m", ""),
			resource("bits.example.com", assess.Wait, "ServersDisagree", "waits until the servers agree", ""),
		}, `RESOURCE           FROM    TO    ACTION                                       WHY
axes.example.com   v1,v2   v2    migrate; the servers count as agreed in 1m   Settling
bits.example.com   v1,v2   v2    migrate when the servers agree               ServersDisagree

No action is needed. To follow the steps, run:
  kubectl svm status --watch
`},
		{"nothing for a person", leads, []assess.Resource{running},
			`RESOURCE           FROM    TO    ACTION                     WHY
cogs.example.com   v1,v2   v2    the migration ends in 5m   MigrationRunning

No action is needed. To follow the steps, run:
  kubectl svm status --watch
`},
		{"a migration waits", leads, []assess.Resource{waits},
			`RESOURCE           FROM    TO    ACTION                                               WHY
gems.example.com   v1,v2   v2    migrate: the migration waits: AwaitingStorageSpace   MigrationQueued

A migration waits. If that lasts, a person may have to act: kubectl svm plan -o wide says what it waits for.
`},
		{"the manager only observes", observes, []assess.Resource{
			resource("anvils.example.com", assess.Act, "NotSelectedForMigration", "--auto-migrate leaves it out", "migrate"),
			resource("bolts.example.com", assess.Wait, "Settling", "the servers count as agreed in 1m", ""),
		}, `RESOURCE             FROM    TO    ACTION                                  WHY
anvils.example.com   v1,v2   v2    nothing: --auto-migrate leaves it out   NotSelectedForMigration
bolts.example.com    v1,v2   v2    the servers count as agreed in 1m       Settling

The manager a only observes. So nobody migrates.
To migrate as yourself, run this on a control plane node or in a Pod:
  kubectl svm run RESOURCE...
To let a manager migrate, install one that does: docs/install.md
`},
		{"nobody migrates", assess.Manager{Message: "No manager leads."}, []assess.Resource{
			resource("anvils.example.com", assess.Act, "NotSelectedForMigration", "--auto-migrate leaves it out", "migrate"),
		}, `RESOURCE             FROM    TO    ACTION                                  WHY
anvils.example.com   v1,v2   v2    nothing: --auto-migrate leaves it out   NotSelectedForMigration

No manager leads. None of this happens until a manager runs the trigger and the migrator.
If one is installed, docs/troubleshooting.md says where to look.
If none is, docs/install.md says how to make a kustomization with your image. Then run:
  kubectl apply -k .
`},
		{"nobody knows whether a manager runs", assess.Manager{Help: "set the clocks", Message: "It is not known."},
			[]assess.Resource{
				resource("bolts.example.com", assess.Act, "Paused", "paused by a person", "resume"),
			}, `RESOURCE            FROM    TO    ACTION                        WHY
bolts.example.com   v1,v2   v2    nothing: paused by a person   Paused

It is not known. If no manager runs, nothing of this plan happens.

The trigger does not do the rest by itself. Run:
  kubectl svm resume bolts.example.com
`},
		{"commands", leads, []assess.Resource{
			resource("anvils.example.com", assess.Act, "NotSelectedForMigration", "--auto-migrate leaves it out", "migrate"),
			resource("bolts.example.com", assess.Act, "Paused", "paused by a person", "resume"),
			resource("drills.example.com", assess.Wait, "Soaking", "a migration starts in 3h", "migrate"),
		}, `RESOURCE             FROM    TO    ACTION                                  WHY
anvils.example.com   v1,v2   v2    nothing: --auto-migrate leaves it out   NotSelectedForMigration
bolts.example.com    v1,v2   v2    nothing: paused by a person             Paused
drills.example.com   v1,v2   v2    a migration starts in 3h                Soaking

The trigger does not do the rest by itself. Run:
  kubectl svm migrate anvils.example.com
  kubectl svm resume bolts.example.com
`},
		{"only a person can act", leads, []assess.Resource{
			running, resource("drills.example.com", assess.Act, "ServersUnseen", "a server does not answer", ""),
		}, `RESOURCE             FROM    TO    ACTION                              WHY
cogs.example.com     v1,v2   v2    the migration ends in 5m            MigrationRunning
drills.example.com   v1,v2   v2    nothing: a server does not answer   ServersUnseen

A person has to act where the action is "nothing" and no command follows.
What to do is in the messages of kubectl svm plan -o wide.
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: streams, ConnectionFlags: "--context=a"}}}
			o.print(newPlan(test.resources, false, test.manager))
			if got, want := out.String(), inContext.Replace(test.want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
	gone := resource("gone.example.com", assess.Act, "NotServed", "it is gone", "")
	gone.Gone = true
	if plan := newPlan([]assess.Resource{gone}, true, leads); !strings.Contains(advice(plan), "No action is needed.") {
		t.Errorf("a resource that is gone has the plan %+v", plan)
	}
	done := resource("a.example.com", assess.None, "OnlyCurrentEncodingPersisted", "", "")
	named := newPlan([]assess.Resource{done}, true, leads)
	if len(named.Steps) != 1 || !strings.Contains(named.Steps[0].Action, "it is done") {
		t.Errorf("a named resource that is done has the plan %+v", named)
	}
}
