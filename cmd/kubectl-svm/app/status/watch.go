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
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// catalogInterval is how often --watch asks what is served: definitions go, and aggregated APIs come back.
const catalogInterval = 30 * time.Second

// readTimeout bounds what --watch reads when it looks: an API server may accept requests and then say nothing.
const readTimeout = 15 * time.Second

// goneInterval is the same while a StorageState is missing that was there: the definition may have been deleted.
const goneInterval = 5 * time.Second

// watch prints changes until everything is safe.
func (o *Options) watch(ctx context.Context, cluster *cli.Cluster, report *Report) error {
	watched, err := o.Clients.Watch(ctx, cluster)
	if err != nil {
		return err
	}
	reported, seen := map[string]string{}, newSightings(cluster)
	o.reportChanges(reported, report, true)
	asked, nothingLeft := o.Clock.Now(), false
	err = o.Follow(ctx, func() (done bool, err error) {
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if now := o.Clock.Now(); now.Sub(asked) >= seen.askAfter(cluster) {
			asked = now
			o.Clients.Rediscover(reading, cluster)
			cluster.Catalog.Add(seen.known.UnsortedList()...)
			o.Clients.ReadDefinitions(reading, cluster)
		}
		watched.Update(cluster)
		resources, err := o.left(cluster, seen)
		if nothingLeft = len(resources) == 0 && !o.WantsAll(); err != nil || nothingLeft {
			return nothingLeft, err
		}
		looked := o.report(reading, cluster, resources)
		if looked.Safe {
			if looked, err = o.confirm(reading, cluster, seen); err != nil {
				return false, err
			}
		}
		if ctx.Err() != nil {
			return false, ctx.Err() // The manager may have been left out.
		}
		report = looked
		o.reportChanges(reported, report, false)
		return report.Safe, nil
	})
	switch {
	case cli.TimedOut(ctx) && err != nil:
		if !report.Manager.Migrates() {
			report.Summary += " " + report.Manager.Message
		}
		return cli.Timeout("timed out after %v. %s%s", o.Timeout, report.Summary, cli.UnreadSince(err))
	case err != nil || nothingLeft:
		return err
	}
	o.conclude(report)
	return nil
}

// sightings are the resources of which a StorageState was seen since the command began: those of which something may
// be left, and those that are gone, because their definitions were deleted.
type sightings struct {
	known, gone sets.Set[schema.GroupResource]
}

func newSightings(cluster *cli.Cluster) *sightings {
	seen := &sightings{known: sets.New[schema.GroupResource](), gone: sets.New[schema.GroupResource]()}
	seen.update(cluster)
	return seen
}

func (s *sightings) update(cluster *cli.Cluster) {
	for i := range cluster.States {
		resource := cluster.States[i].GroupResource()
		s.known.Insert(resource)
		s.gone.Delete(resource)
	}
}

// askAfter is how long after the last time the command asks again what is served.
func (s *sightings) askAfter(cluster *cli.Cluster) time.Duration {
	present := sets.New[schema.GroupResource]()
	for i := range cluster.States {
		present.Insert(cluster.States[i].GroupResource())
	}
	if present.IsSuperset(s.known) {
		return catalogInterval
	}
	return goneInterval
}

// left returns the resources that the person asked for, without those that are gone. It says once that one is.
func (o *Options) left(cluster *cli.Cluster, seen *sightings) ([]schema.GroupResource, error) {
	resources, err := o.Selected(cluster)
	if err != nil { // The names were right at first.
		return nil, fmt.Errorf("resources were added or removed since the command began: %w", err)
	}
	seen.update(cluster)
	for resource := range seen.known {
		if !cluster.Catalog.Gone(resource) {
			continue
		}
		seen.known.Delete(resource)
		seen.gone.Insert(resource)
		if slices.Contains(resources, resource) {
			o.Notef("%s %s: its CustomResourceDefinition was deleted, and its objects with it: nothing is left to do",
				o.Clock.Now().Format(time.TimeOnly), resource)
		}
	}
	return slices.DeleteFunc(resources, seen.gone.Has), nil
}

// confirm makes a report from what is read now: a watch may be late, and a definition may have changed.
func (o *Options) confirm(ctx context.Context, cluster *cli.Cluster, seen *sightings) (*Report, error) {
	unread := o.Clients.ReadStates(ctx, cluster)
	cluster.AddNamed()
	resources, err := o.left(cluster, seen)
	if err != nil {
		return nil, err
	}
	o.Clients.ReadDefinitions(ctx, cluster)
	report := o.report(ctx, cluster, resources)
	if unread != nil {
		report.answer(NotKnown, "Not known to be safe: "+unread.Error())
	}
	return report, nil
}

// reportChanges prints a line for each resource that has changed since it was last printed. At first it prints none,
// because the table has shown all of them.
func (o *Options) reportChanges(reported map[string]string, report *Report, first bool) {
	var running []string
	for i := range report.Resources {
		r := &report.Resources[i]
		progress := r.Migration.Progress(o.Clock.Now())
		if progress != "" {
			running = append(running, r.Name+" "+progress)
		}
		if before, now := reported[r.Name], outline(r, o.Interactive); before != now {
			reported[r.Name] = now
			if !first {
				news := describeChange(r, r.Migration.News(o.Clock.Now()))
				o.Notef("%s %s: %s", o.Clock.Now().Format(time.TimeOnly), r.Name, news)
			}
		}
	}
	stuck := whyStuck(report, o.WantsAll())
	if stuck != "" && stuck != reported[""] && (!first || stuck != report.Summary) { // The table ends with the summary.
		o.Notef("%s", stuck)
	}
	reported[""] = stuck
	o.Overwrite(strings.Join(running, "; "))
}

// whyStuck returns why the command may wait without end, or nothing if the manager goes on by itself. all is whether
// the person asked for all resources.
func whyStuck(report *Report, all bool) string {
	has := func(attention assess.Attention) bool {
		return slices.ContainsFunc(report.Resources, func(r assess.Resource) bool { return r.Attention == attention })
	}
	switch manager := &report.Manager; {
	case report.Safe:
		return ""
	case manager.Stopped(): // No manager works on those that wait.
		return report.Summary
	case has(assess.Wait):
		return ""
	case has(assess.Act):
		help := "All resources that are left need your action. To see what to do, run: " + cli.SVM + " plan"
		for i := range report.Resources {
			if r := &report.Resources[i]; !all && r.Attention == assess.Act {
				help += " " + r.Name
			}
		}
		return help
	default: // The next release is no good, or it is not known whether a manager runs, or what else is stored.
		return report.Summary
	}
}

// outline has what deserves a line of its own when it changes. A terminal shows the progress in place.
func outline(r *assess.Resource, interactive bool) string {
	text := fmt.Sprint(r.Safe, r.Stored, r.Written, r.Agreed, r.Reason)
	if m := r.Migration; m != nil {
		text += m.Name + m.Outline(interactive)
	}
	return text
}

// describeChange returns what a line says about a resource.
func describeChange(r *assess.Resource, progress string) string {
	switch {
	case r.Safe:
		return "safe, every object is stored in " + r.Short(r.Written)
	case progress != "":
		return progress
	}
	text := r.Reason
	if r.Migration != nil && r.Migration.State == migrationv1alpha1.MigrationFailed {
		text += " (" + r.Migration.Reason + ")"
	}
	if r.Next != "" {
		text += ", " + r.Next
	}
	if r.Migration.Waits() {
		text += ": " + r.Migration.Message
	}
	return text
}
