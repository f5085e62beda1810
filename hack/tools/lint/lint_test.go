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
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

func TestPure(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), pureAnalyzer, "decisions")
}

func TestContextual(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), contextualAnalyzer, "logging")
}

func TestSize(t *testing.T) {
	analyzer := newSizeAnalyzer(limits{line: 80, function: 4, file: 19})
	analysistest.Run(t, analysistest.TestData(), analyzer, "sizes")
}

func TestBorders(t *testing.T) {
	const (
		trigger  = rootModule + "/pkg/controller/svmtrigger"
		migrator = rootModule + "/pkg/controller/svmigrator"
		features = rootModule + "/pkg/features"
		app      = rootModule + "/cmd/svm-controller-manager/app"
		names    = rootModule + "/cmd/svm-controller-manager/names"
		servers  = rootModule + "/test/controlplane"
		tests    = rootModule + "/test/integration/manager"
		upstream = "k8s.io/kubernetes/pkg/apis/core"
	)
	for name, tc := range map[string]struct {
		from, to string
		test     bool
		allowed  bool
	}{
		"a controller imports another":             {from: trigger, to: migrator},
		"a controller imports a part of itself":    {from: migrator, to: migrator + "/sweep", allowed: true},
		"a part of a controller imports another":   {from: migrator + "/sweep", to: trigger},
		"the manager imports a controller":         {from: app, to: trigger, allowed: true},
		"the manager imports the test environment": {from: app, to: servers},
		"a test of the manager imports it":         {from: app, to: servers, test: true, allowed: true},
		"an integration test imports it":           {from: tests, to: servers, allowed: true},
		"anything imports Kubernetes itself":       {from: tests, to: upstream, test: true},
		"a library imports a program":              {from: features, to: names},
		"a controller imports a program's names":   {from: migrator, to: names},
		"the API imports the main module":          {from: apiModule + "/migration/v1alpha1", to: features},
	} {
		t.Run(name, func(t *testing.T) {
			why := forbidden(tc.from, tc.to, tc.test)
			if (why == "") != tc.allowed {
				t.Errorf("forbidden(%q, %q, %v) = %q, allowed should be %v", tc.from, tc.to, tc.test, why, tc.allowed)
			}
		})
	}
}
