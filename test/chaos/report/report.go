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

// Package report says what happened in a run, for people and for programs.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/chaos/validate"
)

// Report is what happened in a run.
type Report struct {
	Seed        uint64   `json:"seed"`
	Start       string   `json:"start"`
	Seconds     int      `json:"seconds"`
	ManagerArgs []string `json:"managerArgs"`
	// Faults and Changes count what was done, by kind.
	Faults map[string]Count `json:"faults"`
	// Requests count those of writers by resource and outcome.
	Requests map[string]map[model.Outcome]int `json:"requests"`
	Rounds   []Round                          `json:"rounds"`
	Eras     int                              `json:"eras"`
	// Revisions are those of etcd that were judged, Objects those that wrote an object, and Sharp those of them that came
	// when the state excluded encodings.
	Revisions int `json:"revisions"`
	Objects   int `json:"objects"`
	Sharp     int `json:"sharp"`
	// Rewrites are the writes in etcd that changed only an encoding. Patches are the rewrites that servers confirmed, and
	// Repeated those of them that were for an object that the same migration had rewritten.
	Rewrites int `json:"rewrites"`
	Patches  int `json:"patches"`
	Repeated int `json:"repeated"`
	// MissingSeconds is the longest time for which an encoding was stored that the state did not list, broken or not.
	MissingSeconds float64 `json:"missingSeconds"`
	// RequestsPerObject is how often a migration rewrote an object, on average.
	RequestsPerObject float64 `json:"requestsPerObject"`
	// Migrations counts those that ended, by outcome and reason. ManagerStarts counts starts of manager processes.
	Migrations    map[string]int       `json:"migrations"`
	ManagerStarts int                  `json:"managerStarts"`
	Violations    []validate.Violation `json:"violations"`
	Problems      []string             `json:"problems,omitempty"`
}

// Count is how many faults of a kind there were.
type Count struct {
	Done    int     `json:"done"`
	Failed  int     `json:"failed,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Round is how a round went.
type Round struct {
	FaultSeconds     float64 `json:"faultSeconds"`
	ConvergedSeconds float64 `json:"convergedSeconds"`
	Retries          int     `json:"retries"`
	Problem          string  `json:"problem,omitempty"`
}

// New makes a report of a record that was judged.
func New(seed uint64, start time.Time, record model.Record, result validate.Result) *Report {
	r := &Report{
		Seed: seed, Start: start.UTC().Format(time.RFC3339), Seconds: int(time.Since(start).Seconds()),
		Faults: map[string]Count{}, Requests: map[string]map[model.Outcome]int{}, Eras: len(record.Eras),
		Revisions: result.Revisions, Objects: result.Objects, Sharp: result.Sharp, Rewrites: result.Rewrites,
		Patches: result.Patches, Repeated: result.Repeated, Migrations: result.Migrations, Violations: result.Violations,
		MissingSeconds: result.Missing.Seconds(),
	}
	for _, f := range record.Faults {
		count := r.Faults[f.Kind]
		count.Done++
		count.Seconds += f.End.Sub(f.Start).Seconds()
		if f.Error != "" {
			count.Failed++
		}
		r.Faults[f.Kind] = count
	}
	for _, request := range record.Requests {
		if r.Requests[request.Resource] == nil {
			r.Requests[request.Resource] = map[model.Outcome]int{}
		}
		r.Requests[request.Resource][request.Outcome]++
	}
	for _, round := range record.Rounds {
		r.Rounds = append(r.Rounds, Round{
			round.Calm.Sub(round.Start).Seconds(), round.Converged.Sub(round.Calm).Seconds(), round.Retries, round.Problem,
		})
	}
	if once := result.Patches - result.Repeated; once > 0 {
		r.RequestsPerObject = float64(result.Patches) / float64(once)
	}
	return r
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) {
	fmt.Fprintf(w, "seed %d, %d s from %s, the second manager runs with %v\n", r.Seed, r.Seconds, r.Start, r.ManagerArgs)
	fmt.Fprintf(w, "\n%-32s %5s %7s %8s\n", "fault or change", "times", "failed", "seconds")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		count := r.Faults[kind]
		fmt.Fprintf(w, "%-32s %5d %7d %8.0f\n", kind, count.Done, count.Failed, count.Seconds)
	}
	fmt.Fprintf(w, "\n%-32s %6s %8s %8s\n", "requests of writers", "done", "refused", "unknown")
	for _, resource := range slices.Sorted(maps.Keys(r.Requests)) {
		o := r.Requests[resource]
		fmt.Fprintf(w, "%-32s %6d %8d %8d\n", resource, o[model.Done], o[model.Refused], o[model.Unknown])
	}
	fmt.Fprintf(w, "\n%d eras of etcd, %d revisions judged, %d of objects, %d of them beside a state that excludes "+
		"encodings\n", r.Eras, r.Revisions, r.Objects, r.Sharp)
	fmt.Fprintf(w, "%d writes changed only an encoding; %d requests of migrations succeeded, %d of them for an object "+
		"that the same migration had rewritten: %.3f requests for each object\n",
		r.Rewrites, r.Patches, r.Repeated, r.RequestsPerObject)
	fmt.Fprintf(w, "a state listed an encoding at most %.1f s after an object was stored in it\n", r.MissingSeconds)
	fmt.Fprintf(w, "%d starts of managers\n", r.ManagerStarts)
	for _, outcome := range slices.Sorted(maps.Keys(r.Migrations)) {
		fmt.Fprintf(w, "%4d migrations ended %s\n", r.Migrations[outcome], outcome)
	}
	for i, round := range r.Rounds {
		fmt.Fprintf(w, "round %d: %.0f s of faults, migrated %.0f s later, %d attempts asked for %s\n",
			i+1, round.FaultSeconds, round.ConvergedSeconds, round.Retries, round.Problem)
	}
	fmt.Fprintf(w, "\n%d violations\n", len(r.Violations))
	for _, v := range r.Violations {
		fmt.Fprintln(w, v)
	}
	for _, problem := range r.Problems {
		fmt.Fprintln(w, "problem:", problem)
	}
}
