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

import "fmt"

// bound is something that the manager is held to.
type bound struct {
	what string
	// value is compared with limit. It is absent if a part of it was not measured.
	value func(r *results) (value float64, measured bool)
	limit float64
	// atLeast means that limit is the least that the value may be. Otherwise it is the most.
	atLeast bool
}

// value takes the median that a contender had.
func value(scenario, contender string, m measure) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		s, measured := r.of(scenario, contender, m)
		return s.median, measured
	}
}

// ratio divides what one contender had by what another had.
func ratio(scenario string, m measure, of, by string) func(*results) (float64, bool) {
	return quotient(value(scenario, of, m), value(scenario, by, m))
}

func quotient(of, by func(*results) (float64, bool)) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		a, measured := of(r)
		b, too := by(r)
		return a / b, measured && too && b != 0
	}
}

var bounds = []bound{
	{"alone, default: objects/s, against in-tree", ratio("alone", perSecond, ours, inTree), 1, true},
	{"alone, limits lifted: objects/s, against in-tree", ratio("alone", perSecond, oursLifted, inTree), 2.2, true},
	{"alone, limits lifted: objects/s, against naked, 64", ratio("alone", perSecond, oursLifted, naked64), 0.9, true},
	{"alone, limits lifted: s to the end, against in-tree", ratio("alone", took, oursLifted, inTree), 0.5, false},
	{"alone, default: writes an object", value("alone", ours, written), 1, false},
	{"beside 50/s: others' p99 during, ms", value("beside-50", ours, duringP99), 25, false},
	{"beside 50/s: others' p99 during, against in-tree", ratio("beside-50", duringP99, ours, inTree), 1, false},
	{"beside 50/s: others' p99, during / before", value("beside-50", ours, slower), 1.5, false},
	{"beside 50/s: objects/s, against in-tree", ratio("beside-50", perSecond, ours, inTree), 0.5, true},
	{"beside 150/s: others' p99 during, against in-tree", ratio("beside-150", duringP99, ours, inTree), 1, false},
	{"beside 150/s: others' p99, during / before", value("beside-150", ours, slower), 1.5, false},
	{"beside 150/s: objects/s, against in-tree", ratio("beside-150", perSecond, ours, inTree), 0.5, true},
	{"lasting, beside 150/s: others' p99, during / before", value("lasting", ours, slower), 1.3, false},
	{"denied: objects in the old encoding that storedVersions conceals", value("denied", ours, forgotten), 0, false},
	{"killed: objects left in the old encoding", value("killed", ours, left), 0, false},
	{"killed: writes an object", value("killed", ours, written), 1.05, false},
	{"memory at 50,000 objects, MiB", value("large", ours, peakMemory), 100, false},
	{
		"memory at 50,000 objects, against 5,000",
		quotient(value("large", ours, peakMemory), value("alone", ours, peakMemory)), 1.2, false,
	},
	{"unattended: s until a change is noticed", value("unattended", ours, noticed), 5, false},
	{"unattended: requests an hour, against ksvm", ratio("unattended", hourly, ours, ksvm), 0.25, false},
}

// judge says what a bound allows, what was measured, and whether it is met.
func (b bound) judge(r *results) (allowed, found, verdict string) {
	allowed = fmt.Sprintf("≤ %g", b.limit)
	if b.atLeast {
		allowed = fmt.Sprintf("≥ %g", b.limit)
	}
	value, measured := b.value(r)
	if !measured {
		return allowed, "", "not measured"
	}
	found = fmt.Sprintf("%.2f", value)
	if b.atLeast && value >= b.limit || !b.atLeast && value <= b.limit {
		return allowed, found, "met"
	}
	return allowed, found, "**not met**"
}
