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

package controller

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

func TestGaugesShowTheControllerThatRuns(t *testing.T) {
	type running struct{ value float64 }
	desc := metrics.NewDesc("a_number", "A number.", []string{"label"}, nil, metrics.ALPHA, "")
	gauges := NewGauges(func(r *running, gauge Gauge) { gauge(desc, r.value, "x") }, desc)
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(gauges)
	check := func(when, value string) {
		t.Helper()
		want := ""
		if value != "" {
			want = "# HELP a_number [ALPHA] A number.\n# TYPE a_number gauge\na_number{label=\"x\"} " + value + "\n"
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "a_number"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}

	check("nothing runs", "")
	first, second := &running{1}, &running{2}
	gauges.Show(first)
	check("the first runs", "1")
	gauges.Show(second)
	gauges.Hide(first)
	check("the second runs, and the first has ended after it began", "2")
	gauges.Hide(second)
	check("both have ended", "")
}
