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

package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	"sigs.k8s.io/yaml"
)

// Result is the result of a spec, or of a profile.
type Result string

// Results. Partial is for profiles only: nothing failed, but something was skipped.
const (
	Passed       Result = "passed"
	Failed       Result = "failed"
	NotSupported Result = "not supported"
	Skipped      Result = "skipped"
	Partial      Result = "partial"
)

// mostWords bounds how much of a failure is in the report.
const mostWords = 600

// Report is what a run found.
type Report struct {
	Implementation ReportedProgram `json:"implementation"`
	// Kubernetes is the version of kube-apiserver.
	Kubernetes string `json:"kubernetes"`
	// Judge is how the suite finds out what is stored.
	Judge    string            `json:"judge"`
	Date     string            `json:"date"`
	Seconds  int               `json:"seconds"`
	Profiles []ReportedProfile `json:"profiles"`
}

// ReportedProgram is the implementation.
type ReportedProgram struct {
	Name     string   `json:"name"`
	Version  string   `json:"version,omitempty"`
	Mode     string   `json:"mode,omitempty"`
	Features Features `json:"features"`
}

// ReportedProfile is one profile of a report. Required are the specs of the core, and those whose features are
// declared.
type ReportedProfile struct {
	Name         Profile        `json:"name"`
	Result       Result         `json:"result"`
	Required     int            `json:"required"`
	Passed       int            `json:"passed"`
	Failed       int            `json:"failed"`
	Skipped      int            `json:"skipped"`
	NotSupported int            `json:"notSupported"`
	Specs        []ReportedSpec `json:"specs"`
}

// ReportedSpec is one spec of a report.
type ReportedSpec struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Result  Result  `json:"result"`
	Seconds float64 `json:"seconds,omitempty"`
	// Message says why the spec did not pass.
	Message string `json:"message,omitempty"`
}

// NewReport makes a report of what Ginkgo reports.
func NewReport(o *Options, implementation Implementation, release string, specs []Spec, from types.Report) *Report {
	report := &Report{
		Implementation: ReportedProgram{
			Name: implementation.Name(), Version: o.ImplementationVersion, Mode: o.Mode, Features: implementation.Features(),
		},
		Kubernetes: release, Judge: "API servers: writes that change nothing",
		Date: from.StartTime.UTC().Format(time.DateOnly), Seconds: int(from.RunTime.Seconds()),
	}
	if o.EtcdEndpoints != "" {
		report.Judge = "etcd: the bytes of each object"
	}
	found := map[string]types.SpecReport{}
	for _, s := range from.SpecReports {
		found[nameOf(s.LeafNodeText)] = s
	}
	for _, name := range Profiles {
		profile := ReportedProfile{Name: name}
		for _, s := range specs {
			if s.Profile == name {
				profile.add(reportSpec(s, implementation.Features(), found[s.Name]))
			}
		}
		profile.judge()
		report.Profiles = append(report.Profiles, profile)
	}
	return report
}

func reportSpec(s Spec, declared Features, from types.SpecReport) ReportedSpec {
	reported := ReportedSpec{Name: s.Name, Title: s.Title, Seconds: float64(int(from.RunTime.Seconds()*10)) / 10}
	feature, lacks := s.missing(declared)
	switch {
	case lacks:
		reported.Result, reported.Message = NotSupported, "the feature "+string(feature)+" is not declared"
	case from.State.Is(types.SpecStatePassed):
		reported.Result = Passed
	case from.State.Is(types.SpecStateFailureStates):
		reported.Result, reported.Message = Failed, shorten(from.Failure.Message)
	default:
		reported.Result = Skipped
		if reported.Message = strings.TrimPrefix(from.Failure.Message, skipped); reported.Message == "" {
			reported.Message = "not selected, or the run ended before it"
			if s.KubeAPIServer != "" {
				reported.Message += ", or the version of kube-apiserver is not " + s.KubeAPIServer
			}
		}
	}
	return reported
}

func shorten(text string) string {
	text = strings.TrimSpace(text)
	if len(text) > mostWords {
		text = strings.ToValidUTF8(text[:mostWords], "") + " …"
	}
	return text
}

func (p *ReportedProfile) add(s ReportedSpec) {
	p.Specs = append(p.Specs, s)
	switch s.Result {
	case NotSupported:
		p.NotSupported++
		return
	case Passed:
		p.Passed++
	case Failed:
		p.Failed++
	case Skipped:
		p.Skipped++
	}
	p.Required++
}

func (p *ReportedProfile) judge() {
	switch {
	case p.Required == 0:
		p.Result = NotSupported
	case p.Failed > 0:
		p.Result = Failed
	case p.Passed == 0:
		p.Result = Skipped
	case p.Skipped > 0:
		p.Result = Partial
	default:
		p.Result = Passed
	}
}

// Read reads a report.
func Read(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a report: %w", err)
	}
	report := &Report{}
	if err := yaml.UnmarshalStrict(text, report); err != nil {
		return nil, fmt.Errorf("reading the report %s: %w", path, err)
	}
	return report, nil
}

// Merge takes the results of other runs of the same implementation for specs that were skipped in this one. A slow
// migrator may need several runs, each with a patience of its own.
func (r *Report) Merge(others ...*Report) {
	for _, other := range others {
		r.Seconds += other.Seconds
	}
	for i := range r.Profiles {
		merged := ReportedProfile{Name: r.Profiles[i].Name}
		for j, s := range r.Profiles[i].Specs {
			for _, other := range others {
				if found := other.Profiles[i].Specs[j]; s.Result == Skipped && found.Name == s.Name {
					s = found
				}
			}
			merged.add(s)
		}
		merged.judge()
		r.Profiles[i] = merged
	}
}

// Write writes the report as YAML.
func (r *Report) Write(path string) error {
	text, err := yaml.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of the report: %w", err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
