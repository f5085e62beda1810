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

package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// mostExplained bounds how many resources get a paragraph below the table. There may be a hundred.
const mostExplained = 10

// longestCommand bounds the command of a paragraph, which may name a hundred resources.
const longestCommand = 400

// mostAlike is how many resources to which the same happens are listed one by one.
const mostAlike = 5

var colours = map[assess.Attention]cli.Colour{assess.Act: cli.Red, assess.Wait: cli.Yellow}

func (o *Options) print(report *Report) {
	if o.Output.Structured() || o.Output.Format == cli.Name {
		report.doubt()
	}
	switch shown := o.shown(report); {
	case o.Output.Structured():
		report.Server = o.Server()
		o.Output.PrintAnswer(o.Env, report)
		return
	case o.Output.Format == cli.Name:
		for _, r := range shown {
			fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s\n", r.Name)
		}
		if !report.Safe { // The reason may be no resource, but the manager or the next release.
			o.Notef("%s", report.Summary)
		}
		return
	case len(shown) > 0:
		o.printTable(report, shown)
		fmt.Fprintln(o.Out)
	}
	o.explain(report)
	o.conclude(report)
}

// shown are the resources of the table. Those that are safe are in it only if the person named resources.
func (o *Options) shown(report *Report) []assess.Resource {
	if len(o.Names) > 0 {
		return report.Resources
	}
	for i := range report.Resources { // Those that are safe come last.
		if report.Resources[i].Safe {
			return report.Resources[:i]
		}
	}
	return report.Resources
}

func (o *Options) printTable(report *Report, resources []assess.Resource) {
	columns := []cli.Column{
		{Name: "Resource"}, {Name: "Safe"}, {Name: "Stored"}, {Name: "Written"}, {Name: "Agreed"}, {Name: "Reason"},
		{Name: "Next"}, {Name: "Migration", Wide: true}, {Name: "Epoch", Wide: true}, {Name: "Source", Wide: true},
		{Name: "Message", Wide: true},
	}
	var rows []cli.Row
	for len(resources) > 0 {
		n := 1 // How many are alike.
		for n < len(resources) && alike(&resources[n-1], &resources[n]) {
			n++
		}
		listed := n
		if n > mostAlike+1 && len(o.Names) == 0 && o.Output.Format != cli.Wide {
			listed = mostAlike
		}
		for i := range listed {
			rows = append(rows, o.row(report, &resources[i]))
		}
		if r := &resources[0]; listed < n {
			rows = append(rows, cli.Row{Colour: colours[r.Attention], Cells: []any{
				fmt.Sprintf("... %d more", n-listed), yesNo(r.Safe), "", "", yesNo(r.Agreed), r.Reason, r.Next,
			}})
		}
		resources = resources[n:]
	}
	o.Output.PrintTable(o.Env, columns, rows)
}

// alike reports whether the same happens to two resources, or the same helps.
func alike(a, b *assess.Resource) bool {
	next := a.Next == b.Next
	if a.NextTime != nil && b.NextTime != nil { // Resources that a manager found together settle within seconds.
		next = b.NextTime.Sub(a.NextTime.Time).Abs() < time.Minute
	}
	return a.Attention == b.Attention && a.Agreed == b.Agreed && a.Reason == b.Reason && next &&
		a.Reason != migrationv1alpha1.StateReasonMigrationRunning && (a.Attention == assess.Wait || sameHelp(a, b))
}

// sameHelp reports whether one paragraph is about two resources.
func sameHelp(a, b *assess.Resource) bool {
	return a.Message == b.Message && a.Verb == b.Verb && a.Permission == b.Permission
}

func (o *Options) row(report *Report, r *assess.Resource) cli.Row {
	safe := yesNo(r.Safe)
	if r.Safe && !report.Manager.Running {
		safe = "?" // It was safe when a manager last looked.
	}
	next := cmp.Or(r.Migration.Progress(o.Clock.Now()), r.Next)
	return cli.Row{Colour: colours[r.Attention], Cells: append([]any{
		r.Name, safe, r.ShortStored(), r.Short(r.Written), yesNo(r.Agreed), r.Reason, next,
	}, wide(r)...)}
}

func wide(r *assess.Resource) []any {
	migration, epoch, source := "", "", ""
	if r.Migration != nil {
		migration = r.Migration.Name
	}
	if r.State != nil {
		epoch = strconv.FormatInt(r.State.Status.Epoch, 10)
		if evidence := r.State.Status.Evidence; evidence != nil {
			source = string(evidence.Source)
		}
	}
	return []any{migration, epoch, source, r.Message}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// explain prints what a person has to know who has to do something, or who asked for a resource.
func (o *Options) explain(report *Report) {
	known := report.Resources
	if len(o.Names) > 0 {
		known = nil
	}
	for i, paragraph := range o.paragraphs(report) {
		if i == mostExplained {
			fmt.Fprintln(o.Out, o.Paint(cli.Plain, "For the others: "+cli.SVM+" status RESOURCE"))
			break
		}
		first, names := paragraph[0], paragraph[0].Name
		if n := len(paragraph) - 1; n > 0 {
			names += fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(o.Out, "%s: %s\n", names, o.Paint(cli.Plain, first.Message))
		for _, command := range assess.Commands(paragraph, known) {
			if len(command) > longestCommand {
				command = cli.SVM + " plan"
			}
			fmt.Fprintln(o.Out, o.Paint(cli.Plain, "  "+command))
		}
		fmt.Fprintln(o.Out)
	}
	for i := range report.Resources {
		if r := &report.Resources[i]; r.Remark != "" {
			fmt.Fprintf(o.Out, "%s: %s\n\n", r.Name,
				o.Paint(cli.Plain, r.Remark+"\n  "+cli.SVM+" history "+r.Name+" -o wide"))
		}
	}
}

// paragraphs are the resources to explain. Those that the same helps are in one paragraph.
func (o *Options) paragraphs(report *Report) (paragraphs [][]*assess.Resource) {
	for i := range report.Resources {
		r := &report.Resources[i]
		switch {
		case r.Safe: // These come last.
			return paragraphs
		case r.Attention != assess.Act && len(o.Names) == 0 && !r.Migration.Failing():
			continue
		}
		same := slices.IndexFunc(paragraphs, func(p []*assess.Resource) bool {
			return p[0].Reason == r.Reason && sameHelp(p[0], r)
		})
		if same < 0 || r.Message == "" {
			paragraphs = append(paragraphs, []*assess.Resource{r})
			continue
		}
		paragraphs[same] = append(paragraphs[same], r)
	}
	return paragraphs
}

// conclude prints whether a manager runs, and the answer.
func (o *Options) conclude(report *Report) {
	manager, summary := cli.Plain, cli.Yellow
	if !report.Manager.Running {
		manager = cli.Red
	}
	if report.Safe {
		summary = cli.Green
	} else if len(report.Resources) > 0 && report.Resources[0].Attention == assess.Act {
		summary = cli.Red
	}
	if report.Manager.Fence != "" {
		fmt.Fprintln(o.Out, report.Manager.Fence)
	}
	fmt.Fprintf(o.Out, "%s\n%s\n", o.Paint(manager, report.Manager.Message), o.Paint(summary, report.Summary))
}
