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

package run

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
	meta           = `"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":`
	object         = `{` + meta + `{"name":"a","uid":"1","resourceVersion":"7"}}`
	managed        = `{` + meta + `{"name":"a","uid":"1","resourceVersion":"7",` +
		`"managedFields":[{"manager":"m","operation":"Update","apiVersion":"example.com/v0"}]}}`
	second   = `{` + meta + `{"name":"b","uid":"2","resourceVersion":"7"}}`
	labelled = `{` + meta + `{"name":"b","uid":"2","resourceVersion":"7","labels":{"by":"a-rule"}}}`
)

// fakeServer is an API server with one object of each resource. It serves these documents, in JSON, and answers 503 at
// paths whose document is empty.
type fakeServer struct {
	documents map[string]string
	object    string
	// labels means that there is a second object, to which a rule adds a label.
	labels bool
	// sealed refuses rewrites of objects, unless they go to the status.
	sealed bool

	mu sync.Mutex
	// patched are the paths of the rewrites, each once.
	patched []string
}

// newFakeServer serves resources at versions of groups, each as "<group>/<version> <document of a resource> ...".
func newFakeServer(served ...string) *fakeServer {
	s := &fakeServer{object: object, documents: map[string]string{"/api": `{"kind":"APIVersions","versions":["v1"]}`}}
	groups := map[string][]string{}
	for _, line := range served {
		version, resources, _ := strings.Cut(line, " ")
		at, err := schema.ParseGroupVersion(version)
		if err != nil {
			panic(err)
		}
		if at.Group != "" {
			groups[at.Group] = append(groups[at.Group], fmt.Sprintf(`{"groupVersion":%q,"version":%q}`, version, at.Version))
		}
		path := documents.Path(at)
		s.documents[path] = ""
		if resources != "" {
			s.documents[path] = fmt.Sprintf(`{"kind":"APIResourceList","groupVersion":%q,"resources":[%s]}`, version,
				strings.Join(strings.Fields(resources), ","))
		}
	}
	var all []string
	for group, versions := range groups {
		document := fmt.Sprintf(`{"kind":"APIGroup","name":%q,"versions":[%s],"preferredVersion":%s}`, group,
			strings.Join(versions, ","), versions[0])
		s.documents["/apis/"+group], all = document, append(all, document)
	}
	s.documents["/apis"] = fmt.Sprintf(`{"kind":"APIGroupList","groups":[%s]}`, strings.Join(all, ","))
	return s
}

// document is that of a resource, or of a subresource.
func document(name, hash string) string {
	return fmt.Sprintf(`{"name":%q,"kind":"Widget","storageVersionHash":%q,"verbs":["list","patch"]}`, name, hash)
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	body, isDocument := s.documents[r.URL.Path]
	switch {
	case isDocument && body != "":
	case isDocument:
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.Method == http.MethodPatch:
		if r.URL.Query().Get("dryRun") != "All" {
			panic("a dry run stores something")
		}
		if !slices.Contains(s.patched, r.URL.Path) {
			s.patched = append(s.patched, r.URL.Path)
		}
		body = object
		if strings.HasSuffix(r.URL.Path, "/b") {
			body = labelled
		}
		if s.sealed && !strings.HasSuffix(r.URL.Path, "/status") {
			w.WriteHeader(http.StatusForbidden)
			body = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"sealed"}`
		}
	case strings.HasSuffix(r.URL.Path, "/a"):
		body = s.object
	case r.URL.Query().Has("limit"):
		body = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",` +
			`"metadata":{"resourceVersion":"9"},"items":[` + s.object
		if s.labels {
			body += "," + second
		}
		body += "]}"
	default:
		w.WriteHeader(http.StatusNotFound)
		body = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound",`+
			`"details":{"group":"apiextensions.k8s.io","kind":"customresourcedefinitions","name":%q}}`, path.Base(r.URL.Path))
	}
	_, _ = w.Write([]byte(body))
}

// run runs the command with these arguments. It returns the exit code, and what was printed.
func (s *fakeServer) run(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	kube := kubernetes.NewForConfigOrDie(config)
	streams, _, stdout, stderr := genericiooptions.NewTestIOStreams()
	env := &cli.Env{IOStreams: streams, Clock: clock.RealClock{}, Connect: func() (*cli.Clients, error) {
		return &cli.Clients{
			Config: config, Kube: kube, Discovery: kube.DiscoveryClient, Dynamic: dynamic.NewForConfigOrDie(config),
		}, nil
	}}
	cmd := NewCommand(env)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	code = cli.ExitCode(cmd.ExecuteContext(t.Context()), env)
	return code, stdout.String(), stderr.String()
}

// definitionOf returns a definition with these versions.
func definitionOf(versions string) string {
	return `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",` +
		`"metadata":{"name":"widgets.example.com","uid":"1"},"spec":{"group":"example.com","versions":[` + versions + `]}}`
}

// TestDryRunRehearsesTheRun wants the requests of a dry run, and how it ends, to be those of the run.
func TestDryRunRehearsesTheRun(t *testing.T) {
	const (
		stored, served = `{"name":"v1alpha1","served":true,"storage":true}`, `{"name":"v1","served":true}`
		notServed      = `{"name":"v1alpha1","served":false,"storage":true}`
	)
	hash := storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v1alpha1"}, "Widget")
	both := []string{"example.com/v1 " + document("widgets", hash), "example.com/v1alpha1 " + document("widgets", hash)}
	atAlpha := []string{"/apis/example.com/v1alpha1/widgets/a"}
	for name, test := range map[string]struct {
		served                   []string
		resource                 string // Otherwise the widgets.
		definition, object, says string
		labels, sealed           bool
		exit                     int
		patched                  []string
	}{
		"the storage version is another one": {
			served: both, definition: stored + "," + served, patched: atAlpha, says: "would accept 1 of 1",
		},
		"the storage version is not served": {
			served: both[:1], definition: notServed + "," + served, exit: cli.ExitNotSafe, says: "Serve v1alpha1",
		},
		"managedFields would be lost": {
			served: both, definition: stored + "," + served, object: managed, exit: cli.ExitNotSafe,
			says: "API servers before 1.37 remove all managedFields", patched: atAlpha,
		},
		"a rule changes an object, and not the first one": {
			served: both, definition: stored + "," + served, labels: true, exit: cli.ExitNotSafe,
			says: "would change .metadata.labels", patched: []string{atAlpha[0], "/apis/example.com/v1alpha1/widgets/b"},
		},
		"a policy is about the objects, not about their status": {
			served: []string{both[0] + " " + document("widgets/status", "")}, sealed: true,
			definition: `{"name":"v1","served":true,"storage":true}`, says: "would accept 1 of 1",
			patched: []string{"/apis/example.com/v1/widgets/a", "/apis/example.com/v1/widgets/a/status"},
		},
		"an aggregated server stores another version": {
			served: both, patched: atAlpha, says: "would accept 1 of 1",
		},
		"an aggregated server stores nothing": {
			served: []string{"example.com/v1 " + document("widgets", "")}, exit: cli.ExitNotSafe,
			says: "publishes no storage version",
		},
		"events expire": {
			served: []string{"v1 " + document("events", hash)}, resource: "events", says: "The objects are not rewritten",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(test.served...)
			if s.labels, s.sealed = test.labels, test.sealed; test.object != "" {
				s.object = test.object
			}
			if test.resource == "" {
				test.resource = "widgets.example.com"
			}
			if test.definition != "" {
				s.documents[definitionPath] = definitionOf(test.definition)
			}
			code, out, errOut := s.run(t, "--dry-run", test.resource)
			if code != test.exit || !strings.Contains(out, test.says) {
				t.Errorf("the exit code is %d, want %d, and %q:\n%s%s", code, test.exit, test.says, out, errOut)
			}
			if diff := cmp.Diff(test.patched, s.patched); diff != "" {
				t.Errorf("rewrites (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnlisted wants nobody to believe that everything was migrated while a server is away.
func TestUnlisted(t *testing.T) {
	served := []string{"away.example.com/v1 ", "example.com/v1 " + document("widgets", "h=")}
	for args, want := range map[string]struct {
		exit  int
		named bool
	}{
		"all":                              {cli.ExitError, true},
		"all --dry-run":                    {cli.ExitError, true},
		"*.away.example.com --dry-run":     {cli.ExitError, true},
		"all --dry-run --allow-incomplete": {cli.ExitDone, true},
		"*.example.com --dry-run":          {cli.ExitDone, false},
		"widgets --dry-run":                {cli.ExitDone, false},
	} {
		t.Run(args, func(t *testing.T) {
			code, out, errOut := newFakeServer(served...).run(t, strings.Fields(args)...)
			if named := strings.Contains(errOut, "away.example.com/v1: "); code != want.exit || named != want.named {
				t.Errorf("the exit code is %d, want %d:\n%s%s", code, want.exit, out, errOut)
			}
		})
	}
}

// TestUnstored wants patterns to leave out what no migration can rewrite, and events, for which a run would wait.
func TestUnstored(t *testing.T) {
	s := newFakeServer("example.com/v1 "+document("widgets", "h=")+" "+document("projects", ""),
		"v1 "+document("events", "h="), "events.k8s.io/v1 "+document("events", "h="))
	for names, want := range map[string]struct {
		exit  int
		tried string
	}{
		"all":             {cli.ExitDone, "widgets.example.com"},
		"*.example.com":   {cli.ExitDone, "widgets.example.com"},
		"projects":        {cli.ExitNotSafe, "projects.example.com"},
		"all events":      {cli.ExitDone, "events widgets.example.com"},
		"*.events.k8s.io": {cli.ExitDone, "events.events.k8s.io"},
	} {
		code, out, errOut := s.run(t, append(strings.Fields(names), "--dry-run")...)
		var tried []string
		for line := range strings.Lines(out) {
			if resource, _, found := strings.Cut(line, ": dry run: "); found {
				tried = append(tried, resource)
			}
		}
		if code != want.exit || strings.Join(tried, " ") != want.tried {
			t.Errorf("%s: the exit code is %d, want %d, and %s:\n%s%s", names, code, want.exit, want.tried, out, errOut)
		}
	}
}
