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

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func catalog(t *testing.T) *Catalog {
	t.Helper()
	readWrite := metav1.Verbs{"get", "list", "patch"}
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "events", SingularName: "event", Kind: "Event", ShortNames: []string{"ev"}, Verbs: readWrite},
			{Name: "secrets", SingularName: "secret", Kind: "Secret", Verbs: readWrite},
			{Name: "secrets/status", Kind: "Secret", Verbs: readWrite},
			{Name: "bindings", Kind: "Binding", Verbs: metav1.Verbs{"create"}},
			{Name: "bells\a", Kind: "Bell", Verbs: readWrite},
			{Name: "componentstatuses", Kind: "ComponentStatus", Verbs: metav1.Verbs{"get", "list"}},
		}},
		{GroupVersion: "events.k8s.io/v1", APIResources: []metav1.APIResource{
			{Name: "events", SingularName: "event", Kind: "Event", ShortNames: []string{"ev"}, Verbs: readWrite},
		}},
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
			{Name: "widgets", SingularName: "widget", Kind: "Widget", ShortNames: []string{"wi"}, Verbs: readWrite},
		}},
		{GroupVersion: "example.com/v1alpha1", APIResources: []metav1.APIResource{
			{Name: "widgets", SingularName: "widget", Kind: "Widget", ShortNames: []string{"wi"}, Verbs: readWrite},
		}},
	}
	c, err := Discover(t.Context(), client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	c.Add(schema.GroupResource{Group: "gone.example.com", Resource: "relics"})
	return c
}

func TestNamesOfResources(t *testing.T) {
	for _, test := range []struct {
		names      string
		want, fail string
	}{
		{names: "widgets", want: "widgets.example.com"},
		{names: "widget", want: "widgets.example.com"},
		{names: "WI wi widgets.example.com", want: "widgets.example.com"},
		{names: "wi.example.com", want: "widgets.example.com"},
		{names: "secrets", want: "secrets"},
		{names: "events", want: "events"}, // That of the core group has this full name.
		{names: "events.events.k8s.io", want: "events.events.k8s.io"},
		{names: "*.example.com", want: "widgets.example.com"},
		{names: "all", want: "events, events.events.k8s.io, relics.gone.example.com, secrets, widgets.example.com"},
		{names: "relics", want: "relics.gone.example.com"},
		{names: "ev", fail: `"ev" names 2 resources: write one of events, events.events.k8s.io`},
		{names: "wigdets", fail: `no resource is named "wigdets": write its plural`},
		{names: "secret.example.com", fail: `no resource is named "secret.example.com"`},
		{names: "componentstatuses", fail: `no resource is named "componentstatuses": write its plural`},
		{names: "x", fail: `no resource is named "x": write its plural`},
		{names: "*.nope.io", fail: `no resource is in the group "nope.io"`},
		{names: "", want: ""},
	} {
		t.Run(test.names, func(t *testing.T) {
			resources, err := catalog(t).Resolve(strings.Fields(test.names))
			if test.fail != "" {
				if err == nil || !strings.Contains(err.Error(), test.fail) {
					t.Errorf("got the error %v, want %s", err, test.fail)
				}
				return
			}
			if got := join(resources); err != nil || got != test.want {
				t.Errorf("got %s and the error %v, want %s", got, err, test.want)
			}
		})
	}
}

// TestGroupThatIsMissing has a migration that lacks the group of the resource. Others mean that resource all the same.
func TestGroupThatIsMissing(t *testing.T) {
	mistaken, only := schema.GroupResource{Resource: "widgets"}, schema.GroupResource{Resource: "gizmos"}
	for _, ended := range []bool{true, false} {
		c, needed := catalog(t), sets.New(mistaken, only)
		if c.Add(mistaken, only); ended {
			needed.Clear()
		}
		c.markGone(needed)
		for name, want := range map[string]string{"widgets": "widgets.example.com", "gizmos": "gizmos"} {
			if got, err := c.Resolve([]string{name}); err != nil || join(got) != want {
				t.Errorf("the migration has ended: %t. %s means %v and the error %v, want %s", ended, name, got, err, want)
			}
		}
	}
}

func TestResourcesThatAreServed(t *testing.T) {
	widgets := catalog(t).Find(schema.GroupResource{Group: "example.com", Resource: "widgets"})
	if widgets == nil || strings.Join(widgets.Versions, ",") != "v1,v1alpha1" {
		t.Errorf("got %+v, want widgets in v1 and v1alpha1", widgets)
	}
}

func TestUnlisted(t *testing.T) {
	incomplete := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
		{Group: "away.example.com", Version: "v1"}:    errors.New("no endpoints"),
		{Group: "project.example.com", Version: "v1"}: errors.New("timeout"),
	}}
	for names, want := range map[string]string{
		"":                           "no endpoints timeout",
		"all":                        "no endpoints timeout",
		"secrets All":                "no endpoints timeout",
		"secrets *.example.com":      "",
		"secrets *.Away.example.com": "no endpoints",
	} {
		o := &NamedOptions{Names: strings.Fields(names)}
		got := o.Unlisted(&Catalog{Incomplete: incomplete})
		for _, cause := range []string{"no endpoints", "timeout"} {
			if said := strings.Contains(fmt.Sprint(got), cause); said != strings.Contains(want, cause) {
				t.Errorf("the names %q: got the error %v, want %q", names, got, want)
			}
		}
		if whole := o.Unlisted(&Catalog{}); whole != nil {
			t.Errorf("the names %q: everything is listed, and there is the error %v", names, whole)
		}
	}
}

// TestDiscoveryEnds wants a timeout: a server may accept requests and then say nothing.
func TestDiscoveryEnds(t *testing.T) {
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer = ptr.To("https://127.0.0.1:1")
	clients, err := NewEnv(genericiooptions.NewTestIOStreamsDiscard(), flags).Connect()
	if err != nil {
		t.Fatal(err)
	}
	if client := clients.Discovery.RESTClient().(*rest.RESTClient).Client; client.Timeout == 0 {
		t.Error("requests of discovery have no timeout")
	}
}

// TestEscapes prints what a webhook may have said.
func TestEscapes(t *testing.T) {
	const said = "no\x1b[2J"
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	env := &Env{IOStreams: streams, Interactive: true, Colour: true}
	env.Overwrite(said)
	env.Notef("%s", said)
	ExitCode(errors.New(said), env)
	if want := "\r\x1b[Kno^[[2J\r\x1b[Kno^[[2J\nerror: no^[[2J\n"; errOut.String() != want {
		t.Errorf("got %q, want %q", errOut, want)
	}
	for colour, want := range map[Colour]string{Plain: "no^[[2J", Red: "\x1b[31mno^[[2J\x1b[0m"} {
		if got := env.Paint(colour, said); got != want {
			t.Errorf("painted %q, want %q", got, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err     error
		code    int
		printed string
	}{
		{nil, 0, ""},
		{errors.New("no such host"), 1, "error: no such host\n"},
		{fmt.Errorf("waiting: %w", context.Canceled), 1, "error: interrupted\n"},
		{NotSafe(), 2, ""},
		{Timeout("timed out after %d s", 3), 3, "error: timed out after 3 s\n"},
		{fmt.Errorf("wrapped: %w", Timeout("late")), 3, "error: late\n"},
	} {
		var out bytes.Buffer
		env := &Env{IOStreams: genericiooptions.IOStreams{ErrOut: &out}}
		if code := ExitCode(test.err, env); code != test.code || out.String() != test.printed {
			t.Errorf("%v: got code %d and %q, want %d and %q", test.err, code, out.String(), test.code, test.printed)
		}
	}
}

// TestCertificate asks a server whose CA this process does not know. The server answers, so it is no help to say that
// it could not be reached.
func TestCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	_, err := http.Get(server.URL)
	explained := fmt.Sprint(Explain(err))
	if !strings.Contains(explained, "its certificate is not accepted") || strings.Contains(explained, "could not be") {
		t.Errorf("got %s", explained)
	}
}

func TestTables(t *testing.T) {
	columns := []Column{{Name: "Name"}, {Name: "Why"}, {Name: "Epoch", Wide: true}}
	rows := []Row{
		{Cells: []any{"a", "well", "1"}}, {Cells: []any{"longer", "bad \x1b[2J\nnews", "2"}, Colour: Red},
	}
	for _, test := range []struct {
		format string
		colour bool
		want   string
	}{
		{"", false, "NAME     WHY\na        well\nlonger   bad ^[[2J news\n"},
		{Wide, false, "NAME     WHY              EPOCH\na        well             1\nlonger   bad ^[[2J news   2\n"},
		{"", true, "NAME     WHY\na        well\n\x1b[31mlonger   bad ^[[2J news\x1b[0m\n"},
	} {
		var out bytes.Buffer
		env := &Env{IOStreams: genericiooptions.IOStreams{Out: &out}, Colour: test.colour}
		(&Output{Format: test.format}).PrintTable(env, columns, rows)
		if out.String() != test.want {
			t.Errorf("-o %q, colour %t: got\n%q, want\n%q", test.format, test.colour, out.String(), test.want)
		}
	}
}

// TestNamesOfMigrations wants the API server to keep the whole prefix, because it would cut a longer one anywhere.
func TestNamesOfMigrations(t *testing.T) {
	for resource, want := range map[schema.GroupResource]string{
		{Resource: "secrets"}: "secrets-",
		{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: "validatingadmission" +
			"policybindings.admissionregistration.k-",
	} {
		if got := NewMigration(resource).GenerateName; got != want || len(got) > 58 {
			t.Errorf("%s: %q, want %q", resource, got, want)
		}
	}
}
