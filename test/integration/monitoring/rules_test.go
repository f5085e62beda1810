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
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	root      = "../../../"
	manifests = root + "build/manifests/monitoring/"
	handbook  = "docs/monitoring.md"

	sources = "https://github.com/kubernetes-sigs/svm-controller-manager/blob/main/"
)

// playFiles are what promtool plays.
var playFiles = []string{"testdata/rules_test.yaml", "testdata/rules_days_test.yaml"}

// prometheusRule is the part of a PrometheusRule that Prometheus reads from a file.
type prometheusRule struct {
	Spec ruleFile `json:"spec"`
}

type ruleFile struct {
	Groups []ruleGroup `json:"groups"`
}

type ruleGroup struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// play is one of them.
type play struct {
	Tests []struct {
		Alerts []struct {
			At       string `json:"eval_time"`
			Alert    string `json:"alertname"`
			Expected []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// TestRules plays the series of testdata, in which every alert fires once, and stays silent once.
func TestRules(t *testing.T) {
	rules := readRules(t)
	dir := t.TempDir()
	promtool(t, nil, "check", "rules", writeRules(t, dir, "checked.yaml", rules))
	// The play would have to repeat the annotations.
	writeRules(t, dir, "rules.yaml", changed(rules, func(r *rule) { r.Annotations = nil }))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, file := range playFiles {
		copied := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(copied, read(t, file), 0o600); err != nil {
			t.Fatal(err)
		}
		promtool(t, nil, "test", "rules", copied)
		var played play
		if err := yaml.Unmarshal(read(t, file), &played); err != nil {
			t.Fatal(err)
		}
		for _, test := range played.Tests {
			for _, a := range test.Alerts {
				fires[a.Alert] = fires[a.Alert] || len(a.Expected) > 0
				silent[a.Alert] = silent[a.Alert] || len(a.Expected) == 0
			}
		}
	}
	for _, r := range rules.all() {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%v must have a case in which %s fires (%t), and one in which it is silent (%t)",
				playFiles, r.Alert, fires[r.Alert], silent[r.Alert])
		}
		delete(fires, r.Alert)
	}
	if len(fires) > 0 {
		t.Errorf("%v have cases of alerts that do not exist: %v", playFiles, fires)
	}
}

// TestAlertsAreExplained wants for each alert what whoever is woken by it needs.
func TestAlertsAreExplained(t *testing.T) {
	explained := "\n" + string(read(t, root+handbook))
	for _, r := range readRules(t).all() {
		if r.Labels["severity"] == "" {
			t.Errorf("%s has no severity", r.Alert)
		}
		if summary := r.Annotations["summary"]; summary == "" || strings.Contains(summary, "{{") {
			t.Errorf("the summary of %s must be the same for all its alerts: %q", r.Alert, summary)
		}
		if r.Annotations["description"] == "" {
			t.Errorf("%s has no description", r.Alert)
		}
		if want := sources + handbook + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("the runbook of %s is %s, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !strings.Contains(explained, "\n### "+r.Alert+"\n") {
			t.Errorf("%s has no section about %s", handbook, r.Alert)
		}
	}
}

func (f ruleFile) all() []rule {
	var all []rule
	for _, group := range f.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// changed returns the rules with a change to each of them.
func changed(rules ruleFile, change func(*rule)) ruleFile {
	var result ruleFile
	for _, group := range rules.Groups {
		other := ruleGroup{Name: group.Name}
		for _, r := range group.Rules {
			change(&r)
			other.Rules = append(other.Rules, r)
		}
		result.Groups = append(result.Groups, other)
	}
	return result
}

func readRules(t *testing.T) ruleFile {
	t.Helper()
	var manifest prometheusRule
	if err := yaml.Unmarshal(read(t, manifests+"prometheusrule.yaml"), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest.Spec.all()) == 0 {
		t.Fatal("there are no rules")
	}
	return manifest.Spec
}

func writeRules(t *testing.T, dir, name string, rules ruleFile) (path string) {
	t.Helper()
	data, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// promtool wants promtool to have nothing to complain about, and returns what it prints.
func promtool(t *testing.T, stdin []byte, args ...string) string {
	t.Helper()
	out, err := runPromtool(t, stdin, args...)
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func runPromtool(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	path, err := controlplane.Binary("promtool")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
