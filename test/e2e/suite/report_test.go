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
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/ginkgo/v2/types"
)

// claims is an implementation that declares features.
type claims struct {
	Implementation
	features Features
}

func (c claims) Name() string       { return "claims" }
func (c claims) Features() Features { return c.features }

func TestReport(t *testing.T) {
	test := func(context.Context, *Case) {}
	specs := []Spec{
		{Name: "core", Title: "core", Profile: ProfileRewrite, Test: test},
		{Name: "declared", Title: "declared", Profile: ProfileRewrite, Features: Features{FeaturePruning}, Test: test},
		{Name: "other", Title: "other", Profile: ProfileRewrite, Features: Features{FeatureFence}, Test: test},
		{Name: "skipped", Title: "skipped", Profile: ProfileCRD, Needs: []Need{NeedEtcd}, Test: test},
		{Name: "passed", Title: "passed", Profile: ProfileCRD, Test: test},
		{Name: "failed", Title: "failed", Profile: ProfileHA, Test: test},
		{Name: "unselected", Title: "unselected", Profile: ProfileResilience, KubeAPIServer: ">= 9.0.0", Test: test},
		{Name: "unknown", Title: "unknown", Profile: ProfileKnowledge, Features: Features{FeatureKnowledge}, Test: test},
	}
	found := types.Report{}
	add := func(text string, state types.SpecState, message string) {
		found.SpecReports = append(found.SpecReports, types.SpecReport{
			LeafNodeText: text + ": " + text, State: state, Failure: types.Failure{Message: message},
		})
	}
	add("core", types.SpecStatePassed, "")
	add("declared", types.SpecStatePassed, "")
	add("other", types.SpecStateSkipped, notSupported+"it")
	add("skipped", types.SpecStateSkipped, skipped+"no etcd")
	add("passed", types.SpecStatePassed, "")
	add("failed", types.SpecStateTimedout, "too late")
	add("unselected", types.SpecStateSkipped, "")
	report := NewReport(&Options{}, claims{features: Features{FeaturePruning}}, "1.37.1", specs, found)

	type row struct {
		Result                                          Result
		Required, Passed, Failed, Skipped, NotSupported int
	}
	got := map[Profile]row{}
	messages := map[string]string{}
	for _, p := range report.Profiles {
		got[p.Name] = row{p.Result, p.Required, p.Passed, p.Failed, p.Skipped, p.NotSupported}
		for _, s := range p.Specs {
			messages[s.Name] = s.Message
		}
	}
	want := map[Profile]row{
		ProfileRewrite:    {Passed, 2, 2, 0, 0, 1},
		ProfileCRD:        {Partial, 2, 1, 0, 1, 0},
		ProfileHA:         {Failed, 1, 0, 1, 0, 0},
		ProfileResilience: {Skipped, 1, 0, 0, 1, 0},
		ProfileKnowledge:  {NotSupported, 0, 0, 0, 0, 1},
		ProfileSecurity:   {NotSupported, 0, 0, 0, 0, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
	wantMessages := map[string]string{
		"core": "", "declared": "", "passed": "", "failed": "too late", "skipped": "no etcd",
		"other":      "the feature Fence is not declared",
		"unselected": "not selected, or the run ended before it, or the version of kube-apiserver is not >= 9.0.0",
		"unknown":    "the feature Knowledge is not declared",
	}
	if diff := cmp.Diff(wantMessages, messages); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}
