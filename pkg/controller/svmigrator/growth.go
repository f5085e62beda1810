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

package svmigrator

import (
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// The sizes are read after at most manyRewrites, because some objects may be much larger than the average. Where
	// nobody tells the average, they are read after fewRewrites at first. By default growth.margin has room for
	// fewRewrites objects of 100 kB.
	fewRewrites, manyRewrites = 50, 500
	// mostRewrites is instead of manyRewrites for a resource all objects of which are not larger than half of the bound.
	mostRewrites = 5000
)

// sizes are in bytes, as read at one time.
type sizes struct {
	files   map[string]int64 // of the database of each etcd
	objects map[schema.GroupResource]objectSizes
}

// objectSizes are zero if they are not known.
type objectSizes struct{ average, all int64 }

// add takes what one API server tells.
func (s sizes) add(families map[string]*dto.MetricFamily) {
	for _, metric := range families[sizeMetric].GetMetric() {
		etcd := labelsOf(metric)[etcdLabel]
		s.files[etcd] = max(s.files[etcd], int64(metric.GetGauge().GetValue()))
	}
	counts := map[schema.GroupResource]float64{}
	for _, metric := range families[objectsMetric].GetMetric() {
		counts[resourceOf(metric)] = metric.GetGauge().GetValue()
	}
	for _, metric := range families[bytesMetric].GetMetric() { // A value that is not known is -1.
		resource, all := resourceOf(metric), metric.GetGauge().GetValue()
		if count := counts[resource]; count > 0 && all > 0 {
			known := s.objects[resource]
			s.objects[resource] = objectSizes{max(known.average, int64(all/count)), max(known.all, int64(all))}
		}
	}
}

func resourceOf(metric *dto.Metric) schema.GroupResource {
	labels := labelsOf(metric)
	return schema.GroupResource{Group: labels["group"], Resource: labels["resource"]}
}

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, label := range metric.GetLabel() {
		labels[label.GetName()] = label.GetValue()
	}
	return labels
}

// growth is how large the database files of each etcd are and may become, and when their sizes must be read again. An
// API server gathers all its metrics for each reading, which takes as long as some rewrites, or as a hundred.
type growth struct {
	bound   int64
	files   map[string]*databaseFile
	objects map[schema.GroupResource]objectSizes
	// used is how many bytes were rewritten since the last reading. The next one is due when it reaches bytes. An object
	// of unknown size counts as a share of bytes, so that the next reading is due after every such objects.
	used, bytes, every int64
}

// databaseFile has sizes in bytes.
type databaseFile struct{ first, last, limit int64 }

func newGrowth(bound int64) growth {
	g := growth{bound: bound, files: map[string]*databaseFile{}}
	g.readSoon()
	return g
}

// rewritten counts a rewrite. It reports whether the next reading is due.
func (g *growth) rewritten(resource schema.GroupResource) bool {
	size, atMost := g.objects[resource], int64(manyRewrites)
	switch {
	case size.average == 0:
		atMost = g.every
	case size.all <= g.bound/2:
		atMost = mostRewrites
	}
	g.used += max(size.average, g.bytes/atMost+1)
	return g.used >= g.bytes
}

// read takes the sizes that were read. It returns a file that has reached its limit, if any.
func (g *growth) read(now sizes) (full *databaseFile) {
	soon := g.used == 0
	for id, size := range now.files {
		f := g.files[id]
		if f == nil {
			f = &databaseFile{first: size, last: size, limit: size + g.bound}
			g.files[id] = f
		}
		soon = soon || size-f.last > g.margin() || f.limit-size < 2*g.margin()
		f.last = max(f.last, size)
		if f.last >= f.limit {
			full = f
		}
	}
	g.objects, g.used = now.objects, 0
	g.bytes, g.every = g.margin(), min(2*g.every, manyRewrites)
	if soon {
		g.readSoon()
	}
	return full
}

func (g *growth) readSoon() { g.bytes, g.every = g.margin()/4, fewRewrites }

// resume sets the limits for the time until the next pause. A file that has reached the bound may grow by the margin.
// If it does, it has no free pages left.
func (g *growth) resume() {
	for _, f := range g.files {
		f.limit = max(f.limit, f.last+g.margin())
	}
	g.readSoon()
}

func (g *growth) margin() int64 { return g.bound / 16 }
