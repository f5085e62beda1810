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
	"math"
	"slices"
)

// measure is something that is measured of each run. The values are the keys in the results.
type measure string

const (
	perSecond    measure = "objectsPerSecond"
	took         measure = "tookSeconds"
	waited       measure = "waitedSeconds"
	serverCPU    measure = "serverCPUMillisecondsPerObject"
	etcdCPU      measure = "etcdCPUMillisecondsPerObject"
	clientCPU    measure = "clientCPUMicrosecondsPerObject"
	peakMemory   measure = "peakMemoryMiB"
	received     measure = "receivedBytesPerObject"
	sent         measure = "sentBytesPerObject"
	requests     measure = "requestsPerObject"
	written      measure = "writesPerObject"
	quietP50     measure = "quietP50Milliseconds"
	duringP50    measure = "duringP50Milliseconds"
	quietP99     measure = "quietP99Milliseconds"
	duringP99    measure = "duringP99Milliseconds"
	slower       measure = "p99DuringByQuiet"
	drift        measure = "p99LastMinuteByFirst"
	outcomeShare measure = "succeeded"
	named        measure = "namedObjects"
	left         measure = "leftObjects"
	forgotten    measure = "forgottenObjects"
	hourly       measure = "requestsPerHour"
	noticed      measure = "noticedSeconds"
	detected     measure = "detectedSeconds"
	finished     measure = "finishedSeconds"
)

// described is what a table says of a measure.
type described struct {
	title  string
	digits int
}

var descriptions = map[measure]described{
	perSecond:    {"objects/s, first rewrite to last", 0},
	took:         {"s from the request to the end", 1},
	waited:       {"s from the request to the first rewrite", 1},
	serverCPU:    {"kube-apiserver CPU, ms an object", 2},
	etcdCPU:      {"etcd CPU, ms an object", 2},
	clientCPU:    {"client CPU, µs an object", 0},
	peakMemory:   {"client peak memory, MiB", 0},
	received:     {"client reads, bytes an object", 0},
	sent:         {"client sends, bytes an object", 0},
	requests:     {"requests an object", 2},
	written:      {"writes an object in etcd", 3},
	quietP50:     {"others' p50 before, ms", 1},
	duringP50:    {"others' p50 during, ms", 1},
	quietP99:     {"others' p99 before, ms", 1},
	duringP99:    {"others' p99 during, ms", 1},
	slower:       {"others' p99, during / before", 2},
	drift:        {"others' p99, last minute / first", 2},
	outcomeShare: {"ended as Succeeded (1), as Failed (0), or not at all (–)", 0},
	named:        {"objects that its status names", 0},
	left:         {"objects left in the old encoding", 0},
	forgotten:    {"of these, with the old version removed from storedVersions", 0},
	hourly:       {"requests an hour when nothing happens", 0},
	noticed:      {"s from the change to the StorageState that lists it", 1},
	detected:     {"s from the change to the first rewrite", 1},
	finished:     {"s from the change to the StorageState that lists nothing else", 1},
}

// figures are the measures of one run. One that could not be measured is absent.
type figures map[measure]float64

// put keeps a value if it is a number.
func (f figures) put(m measure, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		f[m] = value
	}
}

// quantile is of sorted values, not a number if there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// spread is what several runs had.
type spread struct{ median, least, most float64 }

func spreadOf(values []float64) (spread, bool) {
	if len(values) == 0 {
		return spread{}, false
	}
	slices.Sort(values)
	middle := (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	return spread{middle, values[0], values[len(values)-1]}, true
}
