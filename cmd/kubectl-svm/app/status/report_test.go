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
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	discoveryfake "k8s.io/client-go/discovery/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
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
		"run the command again": {Message: "It is not known.", Help: "run the command again"},
	} {
		var report Report
		o := &Options{NamedOptions: cli.NamedOptions{Output: cli.Output{Format: cli.JSON}}}
		if err := json.Unmarshal([]byte(screen(t, cluster, manager, o)), &report); err != nil {
			t.Fatal(err)
		}
		if one := report.Resources[0]; one.Safe || one.Attention != assess.Act || one.Next != next {
			t.Errorf("the resource is %+v", one)
		}
	}
}

// TestNoMigrationIsOfferedWithoutAMigrator has a manager that only observes.
func TestNoMigrationIsOfferedWithoutAMigrator(t *testing.T) {
	cluster := &cli.Cluster{States: []migrationv1alpha1.StorageState{
		state(t, "bolts.example.com", "", migrationv1alpha1.StateReasonNotSelected, "It is not selected.", ""),
	}}
	for manager, offered := range map[assess.Manager]bool{leads: true, {Running: true, ObservesOnly: true}: false} {
		got := screen(t, cluster, manager, &Options{})
		if strings.Contains(got, "kubectl svm migrate") != offered || !strings.Contains(got, "It is not selected.") {
			t.Errorf("observes only: %v, and the answer is\n%s", manager.ObservesOnly, got)
		}
	}
}

func TestWhatMakesTheAnswerUnknown(t *testing.T) {
	safe := []assess.Resource{{Name: "a", Safe: true, Attention: assess.None}}
	if r := newReport(&cli.Cluster{}, safe, leads, errors.New("metrics.k8s.io is away")); r.Safe ||
		!strings.Contains(r.Summary, "metrics.k8s.io is away") {
		t.Errorf("a group is unknown, and the answer is %+v", r)
	}
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}}
	unobserved := assess.Resources(cluster, []schema.GroupResource{{Resource: "secrets"}}, now)
	r := newReport(cluster, unobserved, leads, nil)
	if r.Safe || r.Resources[0].Reason != assess.ReasonNotObserved {
		t.Errorf("nobody has looked at secrets, and the answer is %+v", r)
	}
}

// TestNextRelease has objects in a version that Kubernetes 1.36 writes, and 1.37 does not read.
func TestNextRelease(t *testing.T) {
	groups := state(t, "podgroups.scheduling.k8s.io", "", "OnlyCurrentEncodingPersisted", "", "")
	version := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1alpha2"}
	groups.Status.CurrentEncodingVersion = version.String()
	groups.Status.CurrentStorageVersionHash = storageversion.Hash(version, "PodGroup")
	widgets := state(t, "widgets.example.com", "", "OnlyCurrentEncodingPersisted", "", "")
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{widgets, groups}}
	for server, want := range map[string]string{
		"v1.35.9": "Safe to upgrade and to remove",
		"v1.36.2+abc": "Safe to remove old versions: every object of 2 resources is stored in the version that the servers " +
			"write. Not safe to upgrade to Kubernetes 1.37 (podgroups.scheduling.k8s.io): ",
		"v1.37.1": "Safe to remove old versions: every object of 2 resources is stored in the version that the servers " +
			"write. This plugin does not know what Kubernetes 1.38 can read: before an upgrade to it, ask a newer plugin.",
		"other": "Safe to upgrade and to remove",
		"":      "Not known to be safe: asking the API server for its version: it is away",
	} {
		kube := kubefake.NewClientset()
		kube.Discovery().(*discoveryfake.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: server}
		kube.PrependReactor("get", "version", func(clienttesting.Action) (bool, runtime.Object, error) {
			return server == "", nil, errors.New("it is away")
		})
		o := &Options{NamedOptions: cli.NamedOptions{
			Env:     &cli.Env{Clock: clocktesting.NewFakeClock(now)},
			Clients: &cli.Clients{Kube: kube, Discovery: kube.Discovery()},
		}}
		resources := []schema.GroupResource{widgets.GroupResource(), groups.GroupResource()}
		r := o.report(t.Context(), cluster, resources)
		safe := server != "" && !strings.HasPrefix(server, "v1.36")
		if r.Safe != safe || !strings.HasPrefix(r.Summary, want) {
			t.Errorf("a server of %q: safe is %t, and the answer is %s", server, r.Safe, r.Summary)
		}
		if stuck := whyStuck(r); (stuck == "") != r.Safe {
			t.Errorf("a server of %q: --watch says %q", server, stuck)
		}
		if r = o.report(t.Context(), cluster, resources[:1]); strings.HasPrefix(r.Summary, safeToUpgrade) != (server != "") {
			t.Errorf("a server of %q: the answer about widgets alone is %s", server, r.Summary)
		}
	}
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
		"the manager has died":                        {assess.Wait, assess.Manager{}, "until a manager runs: start"},
		"nobody knows whether one runs":               {assess.Wait, notKnown, ""},
		"an object is denied":                         {assess.Act, leads, "All resources that are left need your action."},
		"all is safe":                                 {assess.None, leads, ""},
		"all was safe, and the lease may not be read": {assess.None, notKnown, "To find out, ask an administrator."},
	} {
		r := newReport(&cli.Cluster{}, []assess.Resource{{Name: "a", Attention: test.attention}}, test.manager, nil)
		if got := whyStuck(r); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: got %q, want in it %q", name, got, test.want)
		}
	}
}
