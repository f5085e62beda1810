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

package svmigrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// oneServer is an Observer of a cluster with one server, which answers.
type oneServer struct {
	*known
	server documents.Reader
}

func (o *oneServer) AskEach(ctx context.Context, ask func(context.Context, documents.Reader) error) error {
	return ask(ctx, o.server)
}

// TestWhoHasHeard has a server that writes the right version. Generation 5 of the definition was observed. The server
// may have heard of another one, and etcd may have another one.
func TestWhoHasHeard(t *testing.T) {
	for name, test := range map[string]struct {
		uid           string
		heard, stored int // zero: no definition
		want          error
	}{
		"it has heard of the definition":     {"widgets", 5, 5, nil},
		"it has heard of a later generation": {"widgets", 6, 6, nil},
		"it is late":                         {"widgets", 4, 5, errNotHeard},
		"it and the manager are late":        {"widgets", 4, 6, controller.ErrOutdated},
		"it has heard of the one before":     {"another", 9, 5, errNotHeard},
		"it has heard of none":               {"widgets", 0, 5, errNotHeard},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			uid, generation, kind := "widgets", test.stored, "CustomResourceDefinition"
			if r.URL.Query().Get("resourceVersion") == "0" {
				uid, generation, kind = test.uid, test.heard, "PartialObjectMetadata"
			}
			switch {
			case r.URL.Path != documents.DefinitionPath(widgets):
				_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
					TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList"},
					APIResources: []metav1.APIResource{{Name: widgets.Resource, StorageVersionHash: v2}},
				})
			case generation == 0:
				writeDefinitionMissing(w)
			default:
				_, _ = fmt.Fprintf(w, `{"kind":%q,"metadata":{"uid":%q,"generation":%d}}`, kind, uid, generation)
			}
		}))
		o := &oneServer{newKnown(serverA), readerOf(t, server)}
		e, observation := &environment{observer: o, documents: o.server}, o.Observe(widgets)
		err := e.everyServerFollows(t.Context(), &observation, v2)
		server.Close()
		if (err == nil) != (test.want == nil) || !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// TestServerThatStandsStill cannot ask a server when the settle period is over. What that server writes when it goes on
// began before, so the period begins anew.
func TestServerThatStandsStill(t *testing.T) {
	o := newKnown(serverA)
	s, ctx := stageOf(t, o, made(nil))
	f := newFollowers(s.env, func(schema.GroupResource) {})
	ask := func() {
		if _, err := f.ask(ctx, widgets); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	o.clock.Step(2 * time.Minute)
	o.away = errors.New("the Leases are listed anew")
	d := f.check(made(nil), toV2)
	o.away = nil
	if after := f.check(made(nil), toV2); d.Verdict != Wait || after.Verdict != Go {
		t.Errorf("while nobody knows which servers live, the decision is %+v, and then %+v", d, after)
	}
	o.away = storageversion.ErrNotReady
	stands, again := f.check(made(nil), toV2), f.check(made(nil), toV2)
	if stands.Verdict != Wait || !strings.Contains(stands.Message, "for the settle period") || stands != again {
		t.Errorf("while a server stands still the decision is %+v, and then %+v", stands, again)
	}
	o.away = nil
	ask()
	if d := f.check(made(nil), toV2); d.Verdict != Wait {
		t.Errorf("when the server goes on, the decision is %+v", d)
	}
	o.clock.Step(2 * time.Minute)
	if d := f.check(made(nil), toV2); d.Verdict != Go {
		t.Errorf("all servers have followed for two minutes, and the decision is %+v", d)
	}
}
