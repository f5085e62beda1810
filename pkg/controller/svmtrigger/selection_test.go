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

package svmtrigger

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestUnmatched(t *testing.T) {
	selection, errs := ParseSelection([]string{"*", "-gizmos", "-secrets", "-*.example.com", "-*.exmaple.com"})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	resources := []schema.GroupResource{
		{Resource: "secrets"}, {Group: "apps", Resource: "deployments"}, {Group: "example.com", Resource: "widgets"},
	}
	if got, want := selection.Unmatched(resources), []string{"*.exmaple.com", "gizmos"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUnmatchedIsSaidWhenServersWereRead wants no complaint about a right name while no API server was read.
func TestUnmatchedIsSaidWhenServersWereRead(t *testing.T) {
	f := newFixture(t)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	said := func() int {
		if _, err := f.sync(klog.NewContext(f.ctx, logger), gadgets); err != nil {
			t.Fatal(err)
		}
		return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), `names=["*.apps"]`)
	}
	f.options.AutoMigrate = Selection{"*": true, "*.apps": false, "*.example.com": false}
	if said() > 0 {
		t.Error("names were compared before an API server was read")
	}
	f.observations.see(seen())
	f.observations.looks = map[migrationv1alpha1.EvidenceSource]time.Time{
		migrationv1alpha1.EvidenceFromServerDiscovery: start,
	}
	for range 2 {
		if got := said(); got != 1 {
			t.Errorf("the name that matches nothing was logged %d times, want 1", got)
		}
	}
}

func TestSelects(t *testing.T) {
	for name, tc := range map[string]struct {
		list    string
		selects []string
		not     []string
	}{
		"everything": {
			list:    "*",
			selects: []string{"secrets", "deployments.apps", "widgets.example.com"},
		},
		"nothing, in so many words": {
			list: "-*",
			not:  []string{"secrets", "widgets.example.com"},
		},
		"one of the core group": {
			list:    "secrets",
			selects: []string{"secrets"},
			not:     []string{"secrets.example.com", "configmaps"},
		},
		"everything but one": {
			list:    "*,-secrets",
			selects: []string{"configmaps", "secrets.example.com"},
			not:     []string{"secrets"},
		},
		"the order is of no matter": {
			list:    "-secrets,*",
			selects: []string{"configmaps"},
			not:     []string{"secrets"},
		},
		"a group": {
			list:    "*.example.com",
			selects: []string{"widgets.example.com"},
			not:     []string{"widgets.sub.example.com", "widgets.other-example.com", "secrets"},
		},
		"everything but a group": {
			list:    "*,-*.example.com",
			selects: []string{"secrets", "widgets.sub.example.com"},
			not:     []string{"widgets.example.com"},
		},
		"a name beats its group, which beats everything": {
			list:    "-*,*.example.com,-widgets.example.com",
			selects: []string{"gadgets.example.com"},
			not:     []string{"widgets.example.com", "secrets"},
		},
		"a name out of a group that is left out": {
			list:    "*,-*.example.com,widgets.example.com",
			selects: []string{"widgets.example.com", "secrets"},
			not:     []string{"gadgets.example.com"},
		},
		"blanks around elements, and one of them twice": {
			list:    "* , -secrets,*",
			selects: []string{"configmaps"},
			not:     []string{"secrets"},
		},
		"nothing but one that was left out of nothing on purpose": {
			list: "-*,-secrets",
			not:  []string{"secrets", "configmaps"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, errs := ParseSelection(strings.Split(tc.list, ","))
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			for _, resource := range tc.selects {
				if !s.Selects(schema.ParseGroupResource(resource)) {
					t.Errorf("%q does not select %s", tc.list, resource)
				}
			}
			for _, resource := range tc.not {
				if s.Selects(schema.ParseGroupResource(resource)) {
					t.Errorf("%q selects %s", tc.list, resource)
				}
			}
		})
	}
}

func TestSelectionErrorsSayWhatToWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		list string
		want []string
	}{
		"a kind":                    {"Deployment", []string{`"Deployment"`, "plural in lower case", `"deployments.apps"`}},
		"a singular":                {"*,-secret", []string{`"secret" does not name a resource: write "secrets"`}},
		"a name without its group":  {"deployments", []string{`"deployments"`, `write "deployments.apps"`}},
		"a name of two groups":      {"*,-ingresses", []string{`write "ingresses.networking.k8s.io"`}},
		"a path":                    {"apps/deployments", []string{`"apps/deployments"`, `"deployments.apps"`}},
		"an empty element":          {"*,", []string{`""`, "plural"}},
		"a minus alone":             {"*,-", []string{`""`, "plural"}},
		"two minuses":               {"*,--secrets", []string{`"-secrets"`}},
		"a dot at the end":          {"secrets.", []string{`"secrets."`}},
		"a wildcard without group":  {"*.", []string{`"*."`, `"*.example.com"`, "core group"}},
		"a wildcard in the middle":  {"dep*.apps", []string{`"dep*.apps"`, `"*.example.com"`}},
		"a wildcard of groups":      {"*.*", []string{`"*.*"`, `"*.example.com"`}},
		"yes and no":                {"secrets,-secrets", []string{`"secrets"`, `"-secrets"`, "contradict"}},
		"everything and nothing":    {"*,-*", []string{`"*"`, `"-*"`, "contradict"}},
		"left out of nothing":       {"-secrets", []string{`"-secrets"`, `"*,-secrets"`, `"-*"`}},
		"a group left out of none":  {"-*.example.com", []string{`"*,-*.example.com"`}},
		"more than one wrong thing": {"Foo,secrets,-secrets", []string{`"Foo"`, "contradict"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := ParseSelection(strings.Split(tc.list, ","))
			if len(errs) == 0 {
				t.Fatalf("%q was taken", tc.list)
			}
			for _, want := range tc.want {
				if message := errors.Join(errs...).Error(); !strings.Contains(message, want) {
					t.Errorf("%q does not say %s", message, want)
				}
			}
		})
	}
}
