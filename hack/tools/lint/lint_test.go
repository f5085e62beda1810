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
	analyzer := newSizeAnalyzer(limits{line: 80, function: 4, file: 17})
	if err := analyzer.Flags.Set("enforce", "true"); err != nil {
		t.Fatal(err)
	}
	analysistest.Run(t, analysistest.TestData(), analyzer, "sizes")
}

func TestBorders(t *testing.T) {
	const root = "sigs.k8s.io/svm-controller-manager"
	for name, tc := range map[string]struct {
		from, to string
		test     bool
		allowed  bool
	}{
		"a controller imports another":             {from: root + "/pkg/controller/svmtrigger", to: root + "/pkg/controller/svmigrator"},
		"a controller imports a part of itself":    {from: root + "/pkg/controller/svmigrator", to: root + "/pkg/controller/svmigrator/sweep", allowed: true},
		"a part of a controller imports another":   {from: root + "/pkg/controller/svmigrator/sweep", to: root + "/pkg/controller/svmtrigger"},
		"the manager imports a controller":         {from: root + "/cmd/svm-controller-manager/app", to: root + "/pkg/controller/svmtrigger", allowed: true},
		"the manager imports the test environment": {from: root + "/cmd/svm-controller-manager/app", to: root + "/test/controlplane"},
		"a test of the manager imports it":         {from: root + "/cmd/svm-controller-manager/app", to: root + "/test/controlplane", test: true, allowed: true},
		"an integration test imports it":           {from: root + "/test/integration/manager", to: root + "/test/controlplane", allowed: true},
		"anything imports Kubernetes itself":       {from: root + "/test/integration/manager", to: "k8s.io/kubernetes/pkg/apis/core", test: true},
		"a library imports a program":              {from: root + "/pkg/features", to: root + "/cmd/svm-controller-manager/names"},
		"a controller imports a program's names":   {from: root + "/pkg/controller/svmigrator", to: root + "/cmd/svm-controller-manager/names"},
		"the API imports the main module":          {from: "sigs.k8s.io/svm-api/migration/v1alpha1", to: root + "/pkg/features"},
	} {
		t.Run(name, func(t *testing.T) {
			why := forbidden(tc.from, tc.to, tc.test)
			if (why == "") != tc.allowed {
				t.Errorf("forbidden(%q, %q, %v) = %q, allowed should be %v", tc.from, tc.to, tc.test, why, tc.allowed)
			}
		})
	}
}
