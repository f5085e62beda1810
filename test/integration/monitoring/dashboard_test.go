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

package monitoring

import (
	"encoding/json"
	"errors"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dashboard is the part of Grafana's model that has queries, and says where and how a panel shows the answers.
type dashboard struct {
	Panels []panel `json:"panels"`
}

type panel struct {
	ID    int    `json:"id"`
	Type  string `json:"type"`
	Title string `json:"title"`
	Grid  struct {
		X      int `json:"x"`
		Y      int `json:"y"`
		Width  int `json:"w"`
		Height int `json:"h"`
	} `json:"gridPos"`
	Targets []struct {
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
	Field struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Options struct {
		TextMode string `json:"textMode"`
	} `json:"options"`
}

// variables are what Grafana puts in the place of its variables.
var variables = strings.NewReplacer("$cluster", "", "$job", job, "$__rate_interval", "20s")

// ownMetric matches the metrics that this project defines. All others are those of component-base and client-go.
var ownMetric = regexp.MustCompile(`^(storage_version_|storage_migrator_|svm_)`)

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal(read(t, manifests+"dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// checkPanels wants every panel to have shown something.
func checkPanels(t *testing.T, p *prometheus) {
	t.Helper()
	ids, queries := map[int]bool{}, 0
	for _, panel := range readDashboard(t).Panels {
		if ids[panel.ID] {
			t.Errorf("two panels have the id %d", panel.ID)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			queries++
			shown, err := p.history(t.Context(), variables.Replace(target.Expr))
			if err != nil {
				t.Errorf("panel %q: %v: %s", panel.Title, err, target.Expr)
				continue
			}
			if !slices.ContainsFunc(shown, hasNumber) {
				t.Errorf("panel %q never shows anything: %s", panel.Title, target.Expr)
			}
		}
	}
	t.Logf("%d panels show %d queries", len(ids), queries)
}

func hasNumber(s series) bool {
	return slices.ContainsFunc(s.Values, func(value [2]any) bool {
		text, _ := value[1].(string)
		number, err := strconv.ParseFloat(text, 64)
		return err == nil && !math.IsNaN(number)
	})
}

// checkNames wants all metrics that rules and panels read to be among those that the manager has shown.
func checkNames(t *testing.T, p *prometheus) {
	t.Helper()
	seen, err := p.names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]string{}
	for _, r := range readRules(t).all() {
		read[r.Expr] = r.Alert
	}
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			read[variables.Replace(target.Expr)] = panel.Title
		}
	}
	for query, by := range read {
		names, err := p.selected(t.Context(), query)
		if err != nil {
			t.Errorf("%s: %v", by, err)
		}
		for _, name := range names {
			if !slices.Contains(seen, name) {
				t.Errorf("%s reads %s, which the manager has never shown", by, name)
			}
		}
	}
}

// checkOwnMetrics wants promtool to find nothing wrong with the metrics of this project.
func checkOwnMetrics(t *testing.T, metrics []byte) {
	t.Helper()
	const findings = 3 // the exit code
	out, err := runPromtool(t, metrics, "check", "metrics")
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != findings) {
		t.Fatalf("promtool check metrics: %v\n%s", err, out)
	}
	for _, line := range strings.Split(out, "\n") {
		if ownMetric.MatchString(line) {
			t.Error(line)
		}
	}
}
