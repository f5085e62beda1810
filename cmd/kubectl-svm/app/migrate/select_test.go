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

package migrate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

func cluster(t *testing.T) *cli.Cluster {
	t.Helper()
	readWrite := metav1.Verbs{"get", "list", "patch"}
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "events", Kind: "Event", Verbs: readWrite},
			{Name: "secrets", Kind: "Secret", Verbs: readWrite},
		}},
		{GroupVersion: "events.k8s.io/v1", APIResources: []metav1.APIResource{
			{Name: "events", Kind: "Event", Verbs: readWrite},
		}},
		{GroupVersion: "calendar.example.com/v1", APIResources: []metav1.APIResource{
			{Name: "events", Kind: "Event", Verbs: readWrite, StorageVersionHash: "a="},
			{Name: "invitations", Kind: "Invitation", Verbs: readWrite, StorageVersionHash: "b="},
			{Name: "reminders", Kind: "Reminder", Verbs: readWrite},
		}},
	}
	known := &cli.Cluster{}
	(&cli.Clients{
		Discovery: client.Discovery(), Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()),
	}).Rediscover(t.Context(), known)
	known.Catalog.Add(schema.GroupResource{Group: "gone.example.com", Resource: "relics"})
	return known
}

func TestSelected(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    string
	}{
		{
			"--all has custom resources of kind Event, and none that expire, that no server serves or that are not stored",
			Options{Everything: true},
			"[events.calendar.example.com invitations.calendar.example.com secrets]",
		},
		{
			"--except narrows --all down",
			Options{Everything: true, Except: []string{"*.calendar.example.com"}},
			"[secrets]",
		},
		{
			"a person may name what expires",
			Options{NamedOptions: cli.NamedOptions{Names: []string{"events.events.k8s.io", "secrets"}}},
			"[events.events.k8s.io secrets]",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.options.selected(t.Context(), cluster(t))
			if err != nil || fmt.Sprint(got) != test.want {
				t.Errorf("got %v and the error %v, want %s", got, err, test.want)
			}
		})
	}
}

// TestIncludes has groups whose names look like those of Kubernetes.
func TestIncludes(t *testing.T) {
	const custom = "volumesnapshots.snapshot.storage.k8s.io"
	cluster := &cli.Cluster{Definitions: map[string]*metav1.ObjectMeta{custom: {}}}
	for name, want := range map[string]string{
		"secrets": "built-in", "ingresses.networking.k8s.io": "built-in", custom: "custom",
		"nodes.custom.metrics.k8s.io": "aggregated", "flunders.wardle.example.com": "aggregated",
	} {
		for class, o := range map[string]Options{
			"built-in": {BuiltIn: true}, "custom": {Custom: true}, "aggregated": {Aggregated: true},
		} {
			resource := &cli.Resource{GroupResource: schema.ParseGroupResource(name)}
			if got := o.includes(cluster, resource); got != (class == want) {
				t.Errorf("%s is %s: %t", name, class, got)
			}
		}
	}
}

func TestIncomplete(t *testing.T) {
	incomplete := &cli.Catalog{Incomplete: &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
		{Group: "away.example.com", Version: "v1"}: errors.New("no endpoints"),
	}}}
	named := func(names ...string) Options { return Options{NamedOptions: cli.NamedOptions{Names: names}} }
	for _, test := range []struct {
		name             string
		options          Options
		refused, warning bool
	}{
		{"--all", Options{Everything: true}, true, false},
		{"--all --builtin", Options{Everything: true, BuiltIn: true}, false, false},
		{"--all --builtin --custom", Options{Everything: true, BuiltIn: true, Custom: true}, true, false},
		{"--all --allow-incomplete",
			Options{Everything: true, NamedOptions: cli.NamedOptions{AllowIncomplete: true}}, false, true},
		{"a group", named("*.away.example.com"), true, false},
		{"another group", named("*.example.com", "secrets"), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			streams, _, _, errOut := genericiooptions.NewTestIOStreams()
			test.options.Env = &cli.Env{IOStreams: streams}
			err := test.options.checkComplete(incomplete)
			if warned := strings.Contains(errOut.String(), "left out"); (err != nil) != test.refused || warned != test.warning {
				t.Errorf("got the error %v and %q", err, errOut)
			}
			if err := test.options.checkComplete(&cli.Catalog{}); err != nil {
				t.Errorf("everything is listed, and there is the error %v", err)
			}
		})
	}
}
