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

// measure is something that is measured of each run.
type measure struct {
	key    string // in the results
	title  string // in tables
	digits int
	// plain means that it is not compared with that of the migrator in tree.
	plain bool
}

var (
	perSecond    = measure{"objectsPerSecond", "objects/s, first rewrite to last", 0, false}
	took         = measure{"tookSeconds", "s from the request to the end", 1, false}
	waited       = measure{"waitedSeconds", "s from the request to the first rewrite", 1, false}
	serverCPU    = measure{"serverCPUMillisecondsPerObject", "kube-apiserver CPU, ms an object", 2, false}
	etcdCPU      = measure{"etcdCPUMillisecondsPerObject", "etcd CPU, ms an object", 2, false}
	clientCPU    = measure{"clientCPUMicrosecondsPerObject", "client CPU, µs an object", 0, false}
	peakMemory   = measure{"peakMemoryMiB", "client peak memory, MiB", 0, false}
	received     = measure{"receivedBytesPerObject", "client reads, bytes an object", 0, false}
	sent         = measure{"sentBytesPerObject", "client sends, bytes an object", 0, false}
	requests     = measure{"requestsPerObject", "requests an object", 2, false}
	written      = measure{"writesPerObject", "writes an object in etcd", 3, true}
	quietP50     = measure{"quietP50Milliseconds", "others' p50 before, ms", 1, false}
	duringP50    = measure{"duringP50Milliseconds", "others' p50 during, ms", 1, false}
	quietP99     = measure{"quietP99Milliseconds", "others' p99 before, ms", 1, false}
	duringP99    = measure{"duringP99Milliseconds", "others' p99 during, ms", 1, false}
	slower       = measure{"p99DuringByQuiet", "others' p99, during / before", 2, false}
	drift        = measure{"p99SecondHalfByFirst", "others' p99 of minutes, second half / first", 2, false}
	outcomeShare = measure{"succeeded", "ended as Succeeded (1), as Failed (0), or not at all (–)", 0, true}
	named        = measure{"namedObjects", "objects that its status names", 0, true}
	left         = measure{"leftObjects", "objects left in the old encoding", 0, true}
	forgotten    = measure{"forgottenObjects", "of these, with the old version removed from storedVersions", 0, true}
	hourly       = measure{"requestsPerHour", "requests an hour when nothing happens", 0, false}
	noticed      = measure{"noticedSeconds", "s from the change to the StorageState that lists it", 1, false}
	detected     = measure{"detectedSeconds", "s from the change to the first rewrite", 1, false}
	finished     = measure{"finishedSeconds", "s from the change to the StorageState that lists nothing else", 1, false}
)

// figures are the values of one run, by the keys of measures. What could not be measured is absent.
type figures map[string]float64

// put keeps a value if it is a number.
func (f figures) put(m measure, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		f[m.key] = value
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
