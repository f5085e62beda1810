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

package documents

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// answer is what a test server answers at one path.
type answer struct {
	code        int
	contentType string
	body        string
}

func asJSON(code int, body string) answer { return answer{code, "application/json", body} }

// serve returns a Reader of a server with these answers. To other paths it answers as an API server does: not found.
func serve(t *testing.T, answers map[string]answer) Reader {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := r.Header.Get("Accept"); accept != "application/json" {
			t.Errorf("the request for %s accepts %q", r.URL.Path, accept)
		}
		a, found := answers[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", a.contentType)
		w.WriteHeader(a.code)
		if _, err := w.Write([]byte(a.body)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return readerOf(t, s)
}

func readerOf(t *testing.T, s *httptest.Server) Reader {
	t.Helper()
	config := &rest.Config{Host: s.URL}
	BoundAnswers(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return Reader{Client: client, Timeout: 30 * time.Second}
}

func TestVersionsOfAGroup(t *testing.T) {
	r := serve(t, map[string]answer{"/apis/apps": asJSON(200, `{"kind":"APIGroup","name":"apps",
		"versions":[{"version":"v2alpha1"},{"version":"v1"},{"version":"v1beta1"}],"preferredVersion":{"version":"v1"}}`)})
	for group, want := range map[string][]string{"apps": {"v1", "v2alpha1", "v1beta1"}, "": {"v1"}} {
		if got, err := r.Versions(t.Context(), group); err != nil || !slices.Equal(got, want) {
			t.Errorf("versions of group %q are %q, want %q; error %v", group, got, want, err)
		}
	}
}

func TestResourcesOfAGroupVersion(t *testing.T) {
	document := func(name string) answer {
		return asJSON(200, `{"kind":"APIResourceList","resources":[{"name":"`+name+`","storageVersionHash":"hash="}]}`)
	}
	r := serve(t, map[string]answer{"/api/v1": document("pods"), "/apis/apps/v1": document("deployments")})
	for gv, want := range map[schema.GroupVersion]string{
		{Version: "v1"}: "pods", {Group: "apps", Version: "v1"}: "deployments",
	} {
		list, err := r.Resources(t.Context(), gv)
		if err != nil || len(list.APIResources) != 1 || list.APIResources[0].Name != want {
			t.Errorf("resources of %s are %v, want %s; error %v", gv, list, want, err)
		}
	}
}

func TestDefinitionOfAResource(t *testing.T) {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
	r := serve(t, map[string]answer{path: asJSON(200,
		`{"kind":"CustomResourceDefinition","metadata":{"uid":"uid"},"spec":{"group":"example.com"}}`)})
	d, err := r.Definition(t.Context(), schema.GroupResource{Group: "example.com", Resource: "widgets"})
	if err != nil || d.Metadata.UID != "uid" {
		t.Errorf("definition %v, error %v", d, err)
	}
}

func TestMetricFamilies(t *testing.T) {
	// What follows the last family that is wanted would be an error if somebody read it.
	body, until := &bytes.Buffer{}, map[string]int{}
	for _, name := range []string{"a-wanted", "others", "wanted"} {
		if _, err := protodelim.MarshalTo(body, &dto.MetricFamily{Name: &name, Help: &name}); err != nil {
			t.Fatal(err)
		}
		until[name] = body.Len()
	}
	families := body.String()
	const broken = "\x0a\x0a\x06others\xff\xff" // What follows the name is no protobuf.
	for name, test := range map[string]struct {
		body     string
		families []string
		err      error
	}{
		"both":                {body: families + "\x01\x00no family", families: []string{"a-wanted", "wanted"}},
		"one of them":         {body: families[until["a-wanted"]:] + "\x01\x00no family", families: []string{"wanted"}},
		"another one":         {body: families[:until["others"]], families: []string{"a-wanted"}},
		"one that is skipped": {body: broken + families, families: []string{"a-wanted", "wanted"}},
		"cut in one of these": {body: broken[:len(broken)-1], err: io.ErrUnexpectedEOF},
		"no family at all":    {},
		"cut short":           {body: families[:len(families)-1], err: io.ErrUnexpectedEOF},
		"plain text":          {body: "# HELP wanted [STABLE] A text that somebody wrote.\nwanted 1\n", err: proto.Error},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.URL.String(); got != "/metrics?name%5B%5D=wanted&name%5B%5D=a-wanted" {
					t.Errorf("asked for %s", got)
				}
				if _, err := w.Write([]byte(test.body)); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(s.Close)
			got, err := readerOf(t, s).Families(t.Context(), "wanted", "a-wanted")
			if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, test.families) {
				t.Errorf("families %v, want %v", names, test.families)
			}
			for name, family := range got {
				if family.GetHelp() != name {
					t.Errorf("family %s has the help %q", name, family.GetHelp())
				}
			}
			if !errors.Is(err, test.err) || errors.Is(err, proto.Error) != (test.err == proto.Error) {
				t.Errorf("error %v, want %v", err, test.err)
			}
		})
	}
}

// TestDocumentThatDoesNotEnd has an aggregated server that takes what memory it gets.
func TestDocumentThatDoesNotEnd(t *testing.T) {
	for _, code := range []int{http.StatusOK, http.StatusInternalServerError} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			for line := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}))
		defer s.Close()
		gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
		if _, err := readerOf(t, s).Resources(t.Context(), gv); !errors.Is(err, ErrTooLong) {
			t.Errorf("%d: got the error %v, want %v", code, err, ErrTooLong)
		}
	}
}

// TestDocumentOfEmptyResources has an aggregated server whose document takes a hundred times as much memory.
func TestDocumentOfEmptyResources(t *testing.T) {
	const path = "/apis/example.com/v1"
	r := serve(t, map[string]answer{
		path: asJSON(200, `{"kind":"APIResourceList","resources":[`+strings.Repeat("{},", maxCommas)+`{},{}]}`),
	})
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	if _, err := r.Resources(t.Context(), gv); !errors.Is(err, ErrTooLong) {
		t.Errorf("got the error %v, want %v", err, ErrTooLong)
	}
}

func TestWhatIsNotServedAndWhatCannotBeRead(t *testing.T) {
	status := func(code, reason, message string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","code":` + code + `,"reason":"` + reason +
			`","message":"` + message + `"}`
	}
	for name, test := range map[string]struct {
		answer    answer
		notServed bool
		says      string
	}{
		"an API server does not serve the path": {
			answer: answer{404, "text/plain", "404 page not found\n"}, notServed: true, says: "could not find"},
		"an API server does not have the object": {
			answer: asJSON(404, status("404", "NotFound", "no such definition")), notServed: true, says: "no such definition"},
		"a proxy does not know the way": {
			answer: answer{404, "text/html", "<html>no such host</html>"}, says: "could not find"},
		"an API server forbids it, in its own words": {
			answer: asJSON(403, status("403", "Forbidden", "you may not read apps")), says: "you may not read apps"},
		"a document of another kind": {
			answer: asJSON(200, `{"kind":"APIGroup"}`), says: `answered with kind "APIGroup"`},
		"no document": {
			answer: answer{200, "text/html", "<html>"}, says: "decoding /apis/apps/v1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, map[string]answer{"/apis/apps/v1": test.answer})
			_, err := r.Resources(t.Context(), schema.GroupVersion{Group: "apps", Version: "v1"})
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "/apis/apps/v1") {
				t.Errorf("error %v, want one that names the path and says %q", err, test.says)
			}
			if got := IsNotServed(err); got != test.notServed {
				t.Errorf("not served: %t, want %t", got, test.notServed)
			}
		})
	}
}
