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
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

// Report is what -o json prints.
type Report struct {
	// Server is the address of the API server that was asked.
	Server string `json:"server,omitempty"`
	// Safe is whether the removal of old versions is safe, as far as stored objects matter. It is about an upgrade too if
	// NextRelease says "yes".
	Safe bool `json:"safe"`
	// Answer says the same, and tells what is not safe from what is not known.
	Answer Answer `json:"answer"`
	// Summary says it in a sentence, and why not.
	Summary   string            `json:"summary"`
	Manager   assess.Manager    `json:"manager"`
	Resources []assess.Resource `json:"resources"`
	// Unknown says what could not be read of what is served and defined, or nothing.
	Unknown string `json:"unknown,omitempty"`
	// NextRelease is missing if something else is not safe, and if the person asked about some resources only and it can
	// read these.
	NextRelease *NextRelease `json:"nextRelease,omitempty"`
}

// Answer is whether something is safe.
type Answer string

// The answers. What is not known may be safe.
const (
	Safe     Answer = "safe"
	NotSafe  Answer = "notSafe"
	NotKnown Answer = "notKnown"
)

// NextRelease is the minor release after that of the API server.
type NextRelease struct {
	// It is empty if the version of the API server is not one of Kubernetes.
	Version string `json:"version,omitempty"`
	// Reads is whether it can read what the API servers write of the built-in resources of the report.
	Reads releases.Answer `json:"reads"`
	// Resource is the first one that it cannot read, or if there is none, the first one of which that is not known.
	Resource string `json:"resource,omitempty"`
}

// startManager is what helps where no manager runs. One that is installed may not start.
const startManager = "If a manager is installed, docs/troubleshooting.md says where to look. If none is, " +
	"docs/install.md says how to install one."

// newReport concludes whether all is safe. unlisted says which resources that the person asked for are not known.
func newReport(
	cluster *cli.Cluster, resources []assess.Resource, manager assess.Manager, unlisted error,
) *Report {
	r := &Report{Manager: manager, Resources: resources}
	if unread := errors.Join(unlisted, cluster.DefinitionsUnread); unread != nil {
		r.Unknown = unread.Error()
	}
	if manager.ObservesOnly {
		r.withoutMigrator()
	}
	counts, unconfirmed := map[assess.Attention]int{}, 0
	for i := range resources {
		counts[resources[i].Attention]++
		if resources[i].Reason == assess.ReasonNotConfirmed {
			unconfirmed++
		}
	}
	all, unsafe := fmt.Sprintf("%d resources", len(resources)), counts[assess.Act]+counts[assess.Wait]
	if len(resources) == 1 {
		all = resources[0].Name
	}
	help := "a manager has to run. " + startManager
	if manager.Help != "" {
		help = manager.Help + "."
	}
	switch {
	case unsafe > unconfirmed:
		r.answer(NotSafe, notSafe(resources, unsafe, counts, manager, help))
	case !manager.Running:
		r.answer(NotKnown, fmt.Sprintf("Not known to be safe: when a manager last looked, every object of %s was stored "+
			"in the version that the servers write. To find out, %s", all, help))
	case unconfirmed > 0:
		r.answer(NotKnown, fmt.Sprintf("Not known to be safe: %d of %d StorageStates were not confirmed within the last "+
			"hour, or since their CustomResourceDefinition changed. Check that the manager runs the trigger "+
			"(--controllers), and read its log.", unconfirmed, len(resources)))
	case unlisted != nil || cluster.DefinitionsUnread != nil && !apierrors.IsForbidden(cluster.DefinitionsUnread):
		r.answer(NotKnown, "Not known to be safe: "+r.Unknown)
	default:
		r.answer(Safe, fmt.Sprintf(safeToUpgrade+": every object of %s is stored in the version that the servers write.",
			all))
		if err := cluster.DefinitionsUnread; err != nil {
			r.Summary += " A change of a CustomResourceDefinition within the last minutes may not be known yet: " + err.Error()
		}
	}
	if n := countPaused(resources); n > 0 {
		r.Summary += fmt.Sprintf(" Paused: %d of the safe resources, so their next migrations will not start by themselves.",
			n)
	}
	return r
}

func (r *Report) answer(answer Answer, summary string) {
	r.Safe, r.Answer, r.Summary = answer == Safe, answer, summary
}

const safeToUpgrade, safeToRemove = "Safe to upgrade and to remove old versions", "Safe to remove old versions"

// saysNothingOfUpgrades returns a summary that says at most that it is safe to remove old versions.
func saysNothingOfUpgrades(summary string) string {
	return strings.Replace(summary, safeToUpgrade, safeToRemove, 1)
}

// askNextRelease takes back that it is safe to upgrade if the next minor release cannot read what the API servers
// write, or if it is not known what that release can read.
func (r *Report) askNextRelease(ctx context.Context, client discovery.DiscoveryInterfaceWithContext) {
	server, err := client.ServerVersionWithContext(ctx)
	if err != nil {
		r.answer(NotKnown, "Not known to be safe: asking the API server for its version: "+err.Error())
		return
	}
	release, err := releases.ParseMinor(server.GitVersion)
	if err != nil {
		r.NextRelease = &NextRelease{Reads: releases.NotKnown}
		r.Summary = saysNothingOfUpgrades(r.Summary) + fmt.Sprintf(" It is not known whether the next release can read "+
			"what is stored, because the version of the API server, %q, is not one of Kubernetes.", server.GitVersion)
		return
	}
	next := &NextRelease{Version: (release + 1).String(), Reads: releases.Yes}
	why := ""
	for i := range r.Resources {
		name := r.Resources[i].Name
		found, known := preflight.Unreadable(r.Resources[i].State, release+1)
		if len(found) > 0 {
			r.answer(NotSafe, r.Summary)
			next.Reads, next.Resource = releases.No, name
			why = fmt.Sprintf(" Not safe to upgrade to Kubernetes %s (%s): %s. All findings: "+
				cli.SVM+" preflight --kubernetes-version=%s", next.Version, name, found[0].Message, next.Version)
			break
		}
		if oldest, newest := releases.Known(); !known && next.Reads == releases.Yes {
			next.Reads, next.Resource = releases.NotKnown, name
			why = fmt.Sprintf(" It is not known whether Kubernetes %s can read %s, for example, because this plugin only "+
				"knows the resources of Kubernetes %s to %s. Run a plugin that knows that release, and read the release "+
				"notes.", next.Version, name, oldest, newest)
		}
	}
	r.NextRelease = next
	if why != "" {
		r.Summary = saysNothingOfUpgrades(r.Summary) + why
	}
}

// aboutSome takes back that it is safe to upgrade, because the person asked only about some resources.
func (r *Report) aboutSome() {
	if r.NextRelease != nil && r.NextRelease.Reads == releases.Yes {
		r.NextRelease = nil
	}
	r.Summary = saysNothingOfUpgrades(r.Summary) + " Before an upgrade, ask about all: " + cli.SVM + " status."
}

// doubt makes no resource safe if it is not known whether a manager runs. The table has a question mark instead.
func (r *Report) doubt() {
	for i := range r.Resources {
		if one := &r.Resources[i]; one.Safe && !r.Manager.Running {
			one.Safe, one.Reason, one.Message = false, assess.ReasonNotConfirmed, r.Manager.Message
			one.Attention, one.Next = assess.Act, cmp.Or(r.Manager.Help, startManager)
		}
	}
}

// withoutMigrator drops commands that have objects migrated, where no manager does that. The summary says what is
// missing.
func (r *Report) withoutMigrator() {
	for i := range r.Resources {
		if one := &r.Resources[i]; one.Verb == "migrate" || one.Verb == "retry" {
			one.Verb, one.Permission = "", ""
		}
	}
}

// countPaused counts the resources that are safe and paused. Nothing else says that they are.
func countPaused(resources []assess.Resource) (paused int) {
	for i := range resources {
		if r := &resources[i]; r.Safe && r.State != nil && assess.Paused(r.State) {
			paused++
		}
	}
	return paused
}

// notSafe says how many resources are not safe, and whether a manager works on them.
func notSafe(
	resources []assess.Resource, unsafe int, counts map[assess.Attention]int, manager assess.Manager, help string,
) string {
	summary := fmt.Sprintf("Not safe to upgrade or to remove versions: objects of %d of %d resources may be stored in "+
		"old versions.", unsafe, len(resources))
	stopped := manager.Stopped()
	switch act, wait := counts[assess.Act], counts[assess.Wait]; {
	case len(resources) == 1:
		summary = fmt.Sprintf("Not safe to upgrade or to remove versions of %s (%s).", resources[0].Name, resources[0].Reason)
	case act > 0 && wait > 0 && !stopped:
		summary += fmt.Sprintf(" Action needed: %d. In progress: %d.", act, wait)
	case act > 0:
		summary += fmt.Sprintf(" Action needed: %d.", act)
	case wait > 0 && !stopped:
		summary += fmt.Sprintf(" In progress: %d.", wait)
	}
	switch {
	case stopped && manager.Running:
		summary += " Nothing is migrated until a manager runs the migrator: look at its --controllers."
	case stopped:
		summary += " Nothing happens until a manager runs. " + startManager
	case !manager.Running:
		summary += " It is not known whether a manager works on them. To find out, " + help
	}
	return summary
}
