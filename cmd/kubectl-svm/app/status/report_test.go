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
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	discoveryfake "k8s.io/client-go/discovery/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestSafeWithoutAManager prints for a program. Waiting does not help it.
func TestSafeWithoutAManager(t *testing.T) {
	cluster := &cli.Cluster{States: []migrationv1alpha1.StorageState{
		state(t, "bolts.example.com", "", "OnlyCurrentEncodingPersisted", "", ""),
	}}
	for next, manager := range map[string]assess.Manager{
		startManager:            {Message: "No manager seems to run."},
		"run the command again": {Message: "It is not known.", Help: "run the command again", Unknown: true},
	} {
		var report Report
		o := &Options{NamedOptions: cli.NamedOptions{Output: cli.Output{Format: cli.JSON}}}
		o.Clients = &cli.Clients{Config: &rest.Config{Host: "https://10.0.0.7"}}
		if err := json.Unmarshal([]byte(screen(t, cluster, manager, o)), &report); err != nil {
			t.Fatal(err)
		}
		if report.Server != "https://10.0.0.7" || report.Answer != NotKnown || report.Manager.Unknown != manager.Unknown {
			t.Errorf("the answer is %+v", report)
		}
		if one := report.Resources[0]; one.Safe || one.Attention != assess.Act || one.Next != next {
			t.Errorf("the resource is %+v", one)
		}
	}
}

// TestNames prints the resources that are not safe for a program, and why if it exits with an error.
func TestNames(t *testing.T) {
	in := cluster(state(t, "bolts.example.com", "", "OnlyCurrentEncodingPersisted", "", ""))
	unread := &Report{Summary: "The next release cannot read it.", Resources: []assess.Resource{{Safe: true}}}
	unread.Manager = leads
	resources := func(manager assess.Manager) *Report {
		bolts := []schema.GroupResource{in.States[0].GroupResource()}
		return newReport(in, assess.Resources(in, bolts, manager, now), manager, nil)
	}
	for name, test := range map[string]struct {
		report   *Report
		out, err string
	}{
		"all is safe":     {resources(leads), "", ""},
		"no manager runs": {resources(assess.Manager{}), "storagestate.migration.k8s.io/bolts.example.com\n", "Not known"},
		"the release":     {unread, "", "The next release cannot read it.\n"},
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		o := &Options{NamedOptions: cli.NamedOptions{Env: &cli.Env{IOStreams: streams}}}
		o.Output.Format = cli.Name
		o.print(test.report)
		printed := errOut.String()
		if out.String() != test.out || !strings.HasPrefix(printed, test.err) || (test.err == "") != (printed == "") {
			t.Errorf("%s: got %q and %q, want %q and %q", name, out, printed, test.out, test.err)
		}
	}
}

// TestNoMigrationIsOfferedWithoutAMigrator has a manager that only observes.
func TestNoMigrationIsOfferedWithoutAMigrator(t *testing.T) {
	cluster := &cli.Cluster{States: []migrationv1alpha1.StorageState{
		state(t, "bolts.example.com", "", migrationv1alpha1.StateReasonNotSelected, "It is not selected.", ""),
		state(t, "validatingwebhookconfigurations.admissionregistration.k8s.io", "",
			migrationv1alpha1.StateReasonNotSelected, "It is not selected.", ""),
	}}
	for manager, offered := range map[assess.Manager]bool{leads: true, {Running: true, ObservesOnly: true}: false} {
		got := screen(t, cluster, manager, &Options{})
		if strings.Contains(got, "kubectl svm migrate") != offered ||
			strings.Contains(got, "kubectl svm rbac") != offered || !strings.Contains(got, "It is not selected.") {
			t.Errorf("observes only: %v, and the answer is\n%s", manager.ObservesOnly, got)
		}
	}
}

func TestWhatMakesTheAnswerUnknown(t *testing.T) {
	safe := []assess.Resource{{Name: "a", Safe: true, Attention: assess.None}}
	if r := newReport(&cli.Cluster{}, safe, leads, errors.New("metrics.k8s.io is away")); r.Answer != NotKnown ||
		!strings.Contains(r.Summary, "metrics.k8s.io is away") {
		t.Errorf("a group is unknown, and the answer is %+v", r)
	}
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
	unobserved := assess.Resources(cluster, []schema.GroupResource{{Resource: "secrets"}}, leads, now)
	r := newReport(cluster, unobserved, leads, nil)
	if r.Answer != NotSafe || r.Resources[0].Reason != assess.ReasonNotObserved {
		t.Errorf("nobody has looked at secrets, and the answer is %+v", r)
	}
}

// TestNextRelease has objects in a version that Kubernetes 1.36 writes, and 1.37 does not read. Custom resources, which
// come first, do not hide them, nor does a resource that only the build of a vendor has.
func TestNextRelease(t *testing.T) {
	const done = "OnlyCurrentEncodingPersisted"
	groups := state(t, "podgroups.scheduling.k8s.io", "", done, "", "")
	widgets := state(t, "widgets.example.com", "", done, "", "")
	version := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1alpha2"}
	groups.Status.CurrentEncodingVersion = version.String()
	groups.Status.CurrentStorageVersionHash = storageversion.Hash(version, "PodGroup")
	vendors := state(t, "foos.vendor.k8s.io", "", done, "", "")
	vendors.Status.Evidence.Source = migrationv1alpha1.EvidenceFromServerDiscovery
	const every = "Safe to remove old versions: every object of %s is stored in the version that the servers write."
	ask := " Before an upgrade, ask about all: " + cli.SVM + " status."
	const knows = " because this plugin only knows the resources of Kubernetes 1.34 to 1.37. Run a plugin that knows " +
		"that release, and read the release notes."
	const other = " It is not known whether the next release can read what is stored, because the version of the API " +
		`server, "other", is not one of Kubernetes.`
	both, alone, ofVendor := cluster(widgets, groups), cluster(widgets), cluster(widgets, vendors)
	for _, test := range []struct {
		name, server string
		in           *cli.Cluster
		named        bool
		want         string // "SOME" stands for the sentence that all is safe but an upgrade.
		next         *NextRelease
	}{
		{"it reads all", "v1.35.9", both, false, "Safe to upgrade and to remove", &NextRelease{"1.36", "yes", ""}},
		{"it reads not all", "v1.36.2+abc", both, false, "SOME Not safe to upgrade to Kubernetes 1.37 " +
			"(podgroups.scheduling.k8s.io): ", &NextRelease{"1.37", "no", "podgroups.scheduling.k8s.io"}},
		{"the same, and there are names", "v1.36.2", both, true, "SOME Not safe to upgrade to Kubernetes 1.37 ",
			&NextRelease{"1.37", "no", "podgroups.scheduling.k8s.io"}},
		{"the same beside an unknown one", "v1.36.2", cluster(vendors, groups), false, "SOME Not safe to upgrade",
			&NextRelease{"1.37", "no", "podgroups.scheduling.k8s.io"}},
		{"to come", "v1.37.1", both, false, "SOME It is not known whether Kubernetes 1.38 can read " +
			"podgroups.scheduling.k8s.io, for example," + knows,
			&NextRelease{"1.38", "not known", "podgroups.scheduling.k8s.io"}},
		{"to come, and there are names", "v1.37.1", both, true, "SOME It is not known whether Kubernetes 1.38 can read " +
			"podgroups.scheduling.k8s.io, for example," + knows + ask,
			&NextRelease{"1.38", "not known", "podgroups.scheduling.k8s.io"}},
		{"older than the data", "v1.31.4", both, false, "SOME It is not known whether Kubernetes 1.32 can read " +
			"podgroups.scheduling.k8s.io, for example," + knows,
			&NextRelease{"1.32", "not known", "podgroups.scheduling.k8s.io"}},
		{"no data of a vendor's resource", "v1.36.2", ofVendor, false, "SOME It is not known whether Kubernetes 1.37 can " +
			"read foos.vendor.k8s.io, for example," + knows, &NextRelease{"1.37", "not known", "foos.vendor.k8s.io"}},
		{"custom resources alone", "v1.37.1", alone, false, "Safe to upgrade and to", &NextRelease{"1.38", "yes", ""}},
		{"a custom resource that is named", "v1.36.2", alone, true, "SOME" + ask, nil},
		{"another program", "other", both, false, "SOME" + other, &NextRelease{"", "not known", ""}},
		{"another program, and there are names", "other", both, true, "SOME" + other + ask,
			&NextRelease{"", "not known", ""}},
		{"it is away", "", both, false, "Not known to be safe: asking the API server for its version: it is away", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := fmt.Sprintf("%d resources", len(test.in.States))
			if len(test.in.States) == 1 {
				of = test.in.States[0].Name
			}
			want := strings.ReplaceAll(test.want, "SOME", fmt.Sprintf(every, of))
			r := reportOf(t, test.server, test.in, test.named)
			safe := test.server != "" && (test.next == nil || test.next.Reads != "no")
			if r.Safe != safe || (r.Answer == Safe) != safe || (r.Answer == NotKnown) != (test.server == "") ||
				!strings.HasPrefix(r.Summary, want) {
				t.Errorf("the answer is %s: %s\nwant safe: %t, and %s", r.Answer, r.Summary, safe, want)
			}
			if diff := cmp.Diff(test.next, r.NextRelease); diff != "" {
				t.Errorf("the next release (-want +got):\n%s", diff)
			}
			if stuck := whyStuck(r, true); (stuck == "") != r.Safe {
				t.Errorf("--watch says %q", stuck)
			}
		})
	}
}

// cluster has these StorageStates.
func cluster(states ...migrationv1alpha1.StorageState) *cli.Cluster {
	return &cli.Cluster{Catalog: &cli.Catalog{}, States: states}
}

// reportOf is the report about a server of a version. The person named all resources, or none. A server without a
// version does not answer.
func reportOf(t *testing.T, server string, in *cli.Cluster, named bool) *Report {
	t.Helper()
	kube := kubefake.NewClientset()
	kube.Discovery().(*discoveryfake.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: server}
	kube.PrependReactor("get", "version", func(clienttesting.Action) (bool, runtime.Object, error) {
		return server == "", nil, errors.New("it is away")
	})
	o := &Options{NamedOptions: cli.NamedOptions{
		Env:     &cli.Env{Clock: clocktesting.NewFakeClock(now)},
		Clients: &cli.Clients{Kube: kube, Discovery: kube.Discovery()},
	}}
	var resources []schema.GroupResource
	for i := range in.States {
		resources = append(resources, in.States[i].GroupResource())
		if named {
			o.Names = append(o.Names, in.States[i].Name)
		}
	}
	return o.report(t.Context(), in, resources)
}

// TestGoneWhileWatched watches a resource that is deleted with all that was recorded of it.
func TestGoneWhileWatched(t *testing.T) {
	o := &Options{NamedOptions: cli.NamedOptions{
		Env:     &cli.Env{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Clock: clock.RealClock{}},
		Clients: &cli.Clients{Migration: fake.NewClientset().MigrationV1alpha1()}, Names: []string{"widgets"},
	}}
	err := o.watch(t.Context(), &cli.Cluster{Catalog: &cli.Catalog{}}, &Report{})
	if err == nil || !strings.HasPrefix(err.Error(), "resources were added or removed since the command began: no") {
		t.Errorf("got the error %v", err)
	}
}

// TestWhyStuck has answers that stay the same until a person acts.
func TestWhyStuck(t *testing.T) {
	notKnown := assess.Manager{Help: "ask an administrator"}
	observes := assess.Manager{Running: true, ObservesOnly: true}
	for name, test := range map[string]struct {
		attention assess.Attention
		manager   assess.Manager
		want      string
	}{
		"the manager migrates":                        {assess.Wait, leads, ""},
		"nobody migrates":                             {assess.Wait, observes, "until a manager runs the migrator"},
		"the manager has died":                        {assess.Wait, assess.Manager{}, "until a manager runs. If"},
		"nobody knows whether one runs":               {assess.Wait, notKnown, ""},
		"an object is denied":                         {assess.Act, leads, "run: " + cli.SVM + " plan a"},
		"all is safe":                                 {assess.None, leads, ""},
		"all was safe, and the lease may not be read": {assess.None, notKnown, "To find out, ask an administrator."},
	} {
		r := newReport(&cli.Cluster{}, []assess.Resource{{Name: "a", Attention: test.attention}}, test.manager, nil)
		if got := whyStuck(r, false); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: got %q, want in it %q", name, got, test.want)
		}
	}
}
