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
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Spec is one behaviour that is required of a migrator.
type Spec struct {
	// Name identifies the spec in reports and documents. It never changes.
	Name string
	// Title says what is required.
	Title   string
	Profile Profile
	// Features are what the implementation must declare. A spec without any belongs to the core of its profile.
	Features []Feature
	Needs    []Need
	// Controllers are those that do what is required.
	Controllers []Controller
	// KubeAPIServer is a constraint on the version of kube-apiserver, for example ">= 1.37.0"; none if empty.
	KubeAPIServer string
	// Disruptive specs disturb other users of the cluster. They need control, which nobody gives for a cluster in use.
	Disruptive bool
	// Slow specs take more than a minute.
	Slow bool
	// Timeout is how long the spec may take beyond the patience of the run, which it has for each thing that it waits for.
	Timeout time.Duration
	Test    func(ctx context.Context, c *Case)
}

var nameFormat = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// CheckSpecs finds mistakes in specs.
func CheckSpecs(specs []Spec) error {
	var errs []error
	names := map[string]bool{}
	for _, s := range specs {
		switch {
		case !nameFormat.MatchString(s.Name):
			errs = append(errs, fmt.Errorf("spec %q: the name must be words in lower case with hyphens", s.Name))
		case names[s.Name]:
			errs = append(errs, fmt.Errorf("spec %q is there twice", s.Name))
		case s.Title == "" || s.Test == nil || len(s.Controllers) == 0:
			errs = append(errs, fmt.Errorf("spec %q has no title, no test or no controller", s.Name))
		case !slices.Contains(Profiles, s.Profile):
			errs = append(errs, fmt.Errorf("spec %q: there is no profile %q", s.Name, s.Profile))
		case s.Disruptive && !slices.Contains(s.Needs, NeedControl) && !slices.Contains(s.Needs, NeedServers):
			errs = append(errs, fmt.Errorf("spec %q is disruptive and needs no control", s.Name))
		}
		names[s.Name] = true
	}
	return errors.Join(errs...)
}

// labels are the labels of the spec.
func (s Spec) labels() []string {
	labels := []string{string(s.Profile)}
	if s.Disruptive {
		labels = append(labels, LabelDisruptive)
	} else {
		labels = append(labels, LabelConformance)
	}
	if s.Slow {
		labels = append(labels, LabelSlow)
	}
	for _, feature := range s.Features {
		labels = append(labels, labelFeature+string(feature))
	}
	for _, controller := range s.Controllers {
		labels = append(labels, labelController+string(controller))
	}
	return labels
}

// missing is the first feature that the spec needs and that is not declared.
func (s Spec) missing(declared Features) (Feature, bool) {
	for _, feature := range s.Features {
		if !declared.Has(feature) {
			return feature, true
		}
	}
	return "", false
}

// unmet is the first need that is not met.
func (s Spec) unmet(ctx context.Context, c *Case) (Need, bool) {
	for _, need := range s.Needs {
		if !c.Has(ctx, need) {
			return need, true
		}
	}
	return "", false
}
