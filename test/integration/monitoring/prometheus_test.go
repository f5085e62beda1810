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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	job = "svm-controller-manager"
	// scrapeInterval leaves a busy machine time to answer: a scrape that takes longer shows nothing.
	scrapeInterval     = 4 * time.Second
	evaluationInterval = 2 * time.Second
	queryTimeout       = 30 * time.Second
)

// prometheus is a running Prometheus.
type prometheus struct {
	url     string
	started time.Time
}

// series is one result of a query. Values are pairs of a time and a number in a string.
type series struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
	Values [][2]any          `json:"values"`
}

// startPrometheus runs a Prometheus that reads the target with the token in a file, and evaluates the rules.
func startPrometheus(
	t *testing.T, cp *controlplane.ControlPlane, target, tokenFile string, rules ruleFile,
) *prometheus {
	t.Helper()
	path, err := controlplane.Binary("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, err := yaml.Marshal(map[string]any{
		"global": map[string]any{
			"scrape_interval": scrapeInterval.String(), "scrape_timeout": scrapeInterval.String(),
			"evaluation_interval": evaluationInterval.String(),
		},
		"rule_files": []string{writeRules(t, dir, "rules.yaml", rules)},
		"scrape_configs": []any{map[string]any{
			"job_name": job, "scheme": "https", "tls_config": map[string]any{"insecure_skip_verify": true},
			"authorization":  map[string]any{"credentials_file": tokenFile},
			"static_configs": []any{map[string]any{"targets": []string{target}}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, nil, "check", "config", file)
	address := framework.FreeAddress(t)
	cp.Run(t, "prometheus", path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	p := &prometheus{url: "http://" + address, started: time.Now()}
	framework.Eventually(t, soon, func(ctx context.Context) error { return p.get(ctx, "/-/ready", nil, nil) })
	return p
}

// get asks Prometheus, and reads the answer into result unless that is nil.
func (p *prometheus) get(ctx context.Context, path string, parameters url.Values, result any) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if result == nil {
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Data, result)
}

// query is what a query returns now.
func (p *prometheus) query(ctx context.Context, query string) ([]series, error) {
	var data struct {
		Result []series `json:"result"`
	}
	err := p.get(ctx, "/api/v1/query", url.Values{"query": {query}}, &data)
	return data.Result, err
}

// history is what a query has returned since the start of Prometheus, as often as rules were evaluated.
func (p *prometheus) history(ctx context.Context, query string) ([]series, error) {
	var data struct {
		Result []series `json:"result"`
	}
	err := p.get(ctx, "/api/v1/query_range", url.Values{
		"query": {query}, "step": {evaluationInterval.String()}, "start": {stamp(p.started)}, "end": {stamp(time.Now())},
	}, &data)
	return data.Result, err
}

// names are all metrics that Prometheus has seen.
func (p *prometheus) names(ctx context.Context) ([]string, error) {
	var names []string
	err := p.get(ctx, "/api/v1/label/__name__/values", url.Values{}, &names)
	return names, err
}

// selected are the metrics that a query reads.
func (p *prometheus) selected(ctx context.Context, query string) ([]string, error) {
	var tree any
	if err := p.get(ctx, "/api/v1/parse_query", url.Values{"query": {query}}, &tree); err != nil {
		return nil, err
	}
	var names []string
	var walk func(node any)
	walk = func(node any) {
		switch node := node.(type) {
		case map[string]any:
			kind, _ := node["type"].(string)
			if name, _ := node["name"].(string); strings.HasSuffix(kind, "Selector") && name != "" {
				names = append(names, name)
			}
			for _, child := range node {
				walk(child)
			}
		case []any:
			for _, child := range node {
				walk(child)
			}
		}
	}
	walk(tree)
	if len(names) == 0 {
		return nil, fmt.Errorf("no metric was found in %s", query)
	}
	return names, nil
}

func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

// moment is when a value was.
func moment(value [2]any) time.Time {
	seconds, _ := value[0].(float64)
	return time.UnixMilli(int64(seconds * 1000))
}
