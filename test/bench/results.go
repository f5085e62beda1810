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

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// results are those of all runs, and where they come from.
type results struct {
	Command   string    `json:"command"`
	Time      time.Time `json:"time"`
	Commit    string    `json:"commit"`
	Machine   string    `json:"machine"`
	Load      string    `json:"loadAverageBefore"`
	LoadAfter string    `json:"loadAverageAfter"`
	Quick     bool      `json:"quick,omitempty"`
	Scale     float64   `json:"scale"`
	Runs      []result  `json:"runs"`

	mu sync.Mutex
}

// result is of one run.
type result struct {
	Scenario  string  `json:"scenario"`
	Contender string  `json:"contender"`
	Round     int     `json:"round"`
	Figures   figures `json:"figures"`
}

func newResults(o options) *results {
	commit, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	arguments := strings.Join(os.Args[1:], " ")
	if o.ksvm != "" { // a folder of this machine
		arguments = strings.ReplaceAll(arguments, o.ksvm, "<folder>")
	}
	return &results{
		Command: "go run ./test/bench " + arguments, Time: time.Now().UTC().Truncate(time.Second),
		Commit: strings.TrimSpace(string(commit)), Machine: machine(), Load: loadAverage(), Quick: o.quick, Scale: o.scale,
	}
}

// machine describes what everything runs on.
func machine() string {
	model := valueIn("/proc/cpuinfo", "model name")
	memory := valueIn("/proc/meminfo", "MemTotal")
	return fmt.Sprintf("%d CPUs (%s), memory %s, %s/%s, %s",
		runtime.NumCPU(), model, memory, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// valueIn is the value of the first line "key : value" of a file.
func valueIn(path, key string) string {
	file, err := os.Open(path)
	if err != nil {
		return "unknown"
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// loadAverage tells whether something else runs on the machine.
func loadAverage() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(load))[:3], " ")
}

func (r *results) add(s scenario, contender string, round int, f figures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Runs = append(r.Runs, result{s.name, contender, round, f})
}

func (r *results) write(path string) error {
	r.LoadAfter = loadAverage()
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

func readResults(path string) (*results, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	return r, json.Unmarshal(raw, r)
}

// of is what a contender had in a scenario.
func (r *results) of(scenario, contender string, m measure) (spread, bool) {
	var values []float64
	for _, run := range r.Runs {
		if value, measured := run.Figures[m.key]; measured && run.Scenario == scenario && run.Contender == contender {
			values = append(values, value)
		}
	}
	return spreadOf(values)
}

// contenders are those of a scenario that were measured, in the order in which the scenario names them.
func (r *results) contenders(s scenario) []string {
	return slices.DeleteFunc(slices.Clone(s.contenders), func(name string) bool {
		return !slices.ContainsFunc(r.Runs, func(run result) bool { return run.Scenario == s.name && run.Contender == name })
	})
}

// brief is a line about one run.
func (f figures) brief(s scenario) string {
	var parts []string
	for _, m := range s.measures {
		if value, measured := f[m.key]; measured {
			parts = append(parts, fmt.Sprintf("%s %.*f", m.key, m.digits, value))
		}
	}
	return strings.Join(parts, ", ")
}
