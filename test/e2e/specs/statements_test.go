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

package specs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// TestStatements compares the table of statements with the specs: no row is without a spec, and no spec without a row.
func TestStatements(t *testing.T) {
	document, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(document), "| document | statement | specs |\n")
	if !found {
		t.Fatal("README.md has no table of statements")
	}
	known, shown := sets.New[string](), sets.New[string]()
	for _, s := range All() {
		known.Insert(s.Name)
	}
	rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 3 {
			t.Errorf("a row has %d cells, want 3: %s", len(cells), row)
			continue
		}
		names := quoted.FindAllStringSubmatch(cells[2], -1)
		if len(names) == 0 {
			t.Errorf("a statement has no spec: %s", row)
		}
		for _, name := range names {
			shown.Insert(name[1])
		}
	}
	for name := range shown.Difference(known) {
		t.Errorf("README.md names the spec %q, which does not exist", name)
	}
	for name := range known.Difference(shown) {
		t.Errorf("README.md has no statement that the spec %q shows", name)
	}
	if len(rows) < 30 {
		t.Errorf("there are only %d statements", len(rows))
	}
}

func TestSpecs(t *testing.T) {
	if err := suite.CheckSpecs(All()); err != nil {
		t.Error(err)
	}
	profiles := sets.New[suite.Profile]()
	for _, s := range All() {
		profiles.Insert(s.Profile)
	}
	if missing := sets.New(suite.Profiles...).Difference(profiles); len(missing) > 0 {
		t.Errorf("no spec is in the profiles %v", sets.List(missing))
	}
}
