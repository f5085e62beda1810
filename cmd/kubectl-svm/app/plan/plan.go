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

// Package plan is the command that shows what the trigger will do, and what a person has to do.
package plan

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Show what the trigger does next with each resource whose objects may be stored in old versions, and
why. The last lines are the commands for what the trigger does not do by itself. The command changes nothing.

The plan follows from the StorageStates. The command compares them with the CustomResourceDefinitions, if you may list
these. It does not ask the API servers again what they write.

Exit codes: 0 the plan is printed, 1 an error.`
	example = `  # What happens next
  kubectl svm plan

  # What happens next to some resources
  kubectl svm plan widgets.example.com secrets`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	ManagerLease cli.ManagerLease
}

// Plan is what -o json prints.
type Plan struct {
	// Server is the address of the API server that was asked.
	Server string `json:"server,omitempty"`
	Steps  []Step `json:"steps"`
	// Commands are for what the trigger does not do by itself.
	Commands []string `json:"commands"`
	// Manager is whether a manager runs that carries out the plan.
	Manager assess.Manager `json:"manager"`
	// Unknown says what could not be read, or nothing.
	Unknown string `json:"unknown,omitempty"`

	// unaided means that a person has to act, and that no command of this plugin does it. waits means that a migration
	// waits for something that may need a person.
	unaided, waits bool
}

// Step is what happens next to one resource.
type Step struct {
	Resource string   `json:"resource"`
	From     []string `json:"from"`
	To       string   `json:"to"`
	// Action is what the trigger does, "nothing" if a person has to act.
	Action string `json:"action"`
	// ByItself is whether it happens without a person.
	ByItself bool   `json:"byItself"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`

	colour             cli.Colour
	shortFrom, shortTo string
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "plan [RESOURCE...]",
		Short:             "Show what the trigger will do and why, and the commands for the rest",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
	})
	o.Output.AddTo(cmd, cli.Wide, cli.JSON, cli.YAML)
	o.ManagerLease.AddTo(cmd.Flags())
	return cmd
}

// Run prints the plan.
func (o *Options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	resources, err := o.Selected(cluster)
	if err != nil {
		return err
	}
	o.Clients.ReadDefinitions(ctx, cluster)
	now := o.Clock.Now()
	manager := assess.FindManager(ctx, o.Env, o.Clients, o.ManagerLease, cluster.States)
	plan := newPlan(assess.Resources(cluster, resources, manager, now), len(o.Names) > 0, manager)
	unknown := o.Unlisted(cluster.Catalog)
	unknown = errors.Join(unknown, cluster.DefinitionsUnread)
	if unknown != nil {
		plan.Unknown = unknown.Error()
	}
	if err := ctx.Err(); err != nil {
		return err // Something may have been left out.
	}
	if o.Output.Structured() {
		plan.Server = o.Server()
		o.Output.PrintAnswer(o.Env, plan)
	} else {
		o.print(plan)
	}
	return nil
}

// newPlan makes a step of each resource that is not safe, or that the person named.
func newPlan(resources []assess.Resource, named bool, manager assess.Manager) *Plan {
	plan, known := &Plan{Steps: []Step{}, Commands: []string{}, Manager: manager}, resources
	if named {
		known = nil
	}
	var helped []*assess.Resource
	for i := range resources {
		r := &resources[i]
		if r.Safe && !named {
			continue
		}
		plan.Steps = append(plan.Steps, newStep(r, manager.ObservesOnly))
		plan.waits = plan.waits || r.Attention == assess.Wait && r.Migration.Waits()
		if r.Attention == assess.Act { // The trigger does the others by itself.
			helped = append(helped, r)
			plan.unaided = plan.unaided || r.Verb == "" && !r.Gone
		}
	}
	plan.Commands = append(plan.Commands, assess.Commands(helped, known)...)
	return plan
}

// newStep says what happens next to a resource. If the manager only observes, no migration follows.
func newStep(r *assess.Resource, observesOnly bool) Step {
	s := Step{
		Resource: r.Name, From: r.Stored, To: r.Written, Reason: r.Reason, Message: r.Message,
		ByItself:  r.Safe || r.Attention != assess.Act && !observesOnly,
		shortFrom: r.ShortStored(), shortTo: r.Short(r.Written),
	}
	switch {
	case r.Safe:
		s.Action = "nothing, it is done"
	case r.Attention == assess.Act:
		s.Action, s.colour = "nothing: "+r.Next, cli.Red
		if r.NextTime != nil {
			s.Action = r.Next
		}
	case observesOnly:
		s.Action = r.Next
	case r.Reason == migrationv1alpha1.StateReasonSettling:
		s.Action = "migrate; " + r.Next
	case r.Reason == migrationv1alpha1.StateReasonServersDisagree:
		s.Action = "migrate when the servers agree"
	case r.Reason == migrationv1alpha1.StateReasonMigrationQueued:
		s.Action = "migrate: " + r.Next
	default:
		s.Action = r.Next
	}
	return s
}

// emptySummary returns the text for a plan without steps. It says so if that is not certain.
func emptySummary(plan *Plan) string {
	switch {
	case !plan.Manager.Running:
		return "It is not known whether a migration is due. When a manager last looked, every object was stored in the " +
			"version that the servers write. " + plan.Manager.Message
	case plan.Unknown != "":
		return "Nothing is known to be due, but " + plan.Unknown
	}
	return "Nothing to do: every object is stored in the version that the servers write."
}

func (o *Options) print(plan *Plan) {
	if len(plan.Steps) == 0 {
		fmt.Fprintln(o.Out, o.Paint(cli.Plain, emptySummary(plan)))
		return
	}
	if plan.Unknown != "" {
		fmt.Fprintf(o.Out, "%s\n\n", o.Paint(cli.Plain, "Warning: "+plan.Unknown))
	}
	columns := []cli.Column{
		{Name: "Resource"}, {Name: "From"}, {Name: "To"}, {Name: "Action"}, {Name: "Why"}, {Name: "Message", Wide: true},
	}
	var rows []cli.Row
	for _, s := range plan.Steps {
		rows = append(rows, cli.Row{Colour: s.colour, Cells: []any{
			s.Resource, s.shortFrom, s.shortTo, s.Action, s.Reason, s.Message,
		}})
	}
	o.Output.PrintTable(o.Env, columns, rows)
	switch message := o.Paint(cli.Red, plan.Manager.Message); {
	case plan.Manager.Help != "":
		fmt.Fprintf(o.Out, "\n%s If no manager runs, nothing of this plan happens.\n", message)
		fmt.Fprint(o.Out, o.Paint(cli.Plain, advice(plan)))
	case plan.Manager.ObservesOnly:
		fmt.Fprintf(o.Out, "\n%s %s", message, o.Paint(cli.Plain, "So nobody migrates.\n"+
			"To migrate as yourself, run this on a control plane node or in a Pod:\n  "+cli.SVM+" run RESOURCE...\n"+
			"To let a manager migrate, install one that does: docs/install.md\n"))
	case !plan.Manager.Migrates():
		fmt.Fprintf(o.Out, "\n%s %s", message, o.Paint(cli.Plain, "None of this happens until a manager runs the trigger "+
			"and the migrator.\nIf one is installed, docs/troubleshooting.md says where to look.\n"+
			"If none is, docs/install.md says how to make a kustomization with your image. Then run:\n  "+cli.Kubectl+
			" apply -k .\n"))
	default:
		fmt.Fprint(o.Out, o.Paint(cli.Plain, advice(plan)))
	}
}

// advice says what a person has to do.
func advice(plan *Plan) string {
	text := ""
	if plan.unaided {
		text = "\nA person has to act where the action is \"nothing\" and no command follows.\n" +
			"What to do is in the messages of " + cli.SVM + " plan -o wide.\n"
	}
	switch {
	case len(plan.Commands) > 0:
		text += "\nThe trigger does not do the rest by itself. Run:\n  " + strings.Join(plan.Commands, "\n  ") + "\n"
	case plan.waits:
		text += "\nA migration waits. If that lasts, a person may have to act: " + cli.SVM + " plan -o wide says what it " +
			"waits for.\n"
	case !plan.unaided:
		text = "\nNo action is needed. To follow the steps, run:\n  " + cli.SVM + " status --watch\n"
	}
	return text
}
