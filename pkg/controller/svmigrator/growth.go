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
	"cmp"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// The sizes are read after readAfter rewrites or earlier, because some objects may be much larger than the average.
	// If the average size is not known, they are read after readAfterFirst at first. The default margin is the size of
	// more than readAfterFirst objects of 100 kB.
	readAfterFirst, readAfter = 50, 500
	// If all objects of a resource together take at most half of maxGrowth, readAfterIfSmall counts instead of readAfter.
	readAfterIfSmall = 5000
)

// reportedSizes has what the API servers reported at one time, in bytes.
type reportedSizes struct {
	file    int64 // of etcd's database; zero if no server reported it
	objects map[schema.GroupResource]objectSizes
}

// objectSizes are zero if they are not known.
type objectSizes struct{ average, all int64 }

// add adds what one API server reports. Of two values for the same thing the larger one counts. If a server reported
// several etcds, their sum would grow whenever one of them does.
func (s *reportedSizes) add(families map[string]*dto.MetricFamily) {
	file := int64(0)
	for _, metric := range families[sizeMetric].GetMetric() {
		file += int64(metric.GetGauge().GetValue())
	}
	s.file = max(s.file, file)
	counts := map[schema.GroupResource]float64{}
	for _, metric := range families[objectsMetric].GetMetric() {
		counts[resourceOf(metric)] = metric.GetGauge().GetValue()
	}
	for _, metric := range families[bytesMetric].GetMetric() { // An API server reports -1 if it does not know the value.
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

// growth is how large the database file of etcd is and may become, and when the sizes must be read again. They are not
// read after each rewrite: an API server gathers all its metrics for that, which takes as long as a few rewrites, or as
// a hundred.
type growth struct {
	// maxGrowth is by how many bytes the file may grow before the first pause.
	maxGrowth int64
	// measuring is set during the first readings. before is the file of the measurement before.
	measuring    bool
	file, before databaseFile
	objects      map[schema.GroupResource]objectSizes
	// rewrittenBytes is an estimate of the bytes that were rewritten since the last reading.
	rewrittenBytes int64
	// budget is how many bytes may be rewritten before the next reading.
	budget int64
	// maxUnsized is how many objects of unknown size may be rewritten before the next reading. Each of them counts as a
	// share of the budget.
	maxUnsized int64
	// sincePause is an estimate of the bytes that were rewritten since the last pause ended. room is how many of them fit
	// into the free pages of a file that must not grow any more, or zero while it may grow.
	sincePause, room int64
}

// databaseFile has sizes of a database file in bytes: when it was first and last read, and at which rewriting pauses.
// All are zero before it is read.
type databaseFile struct{ first, last, limit int64 }

func newGrowth(maxGrowth int64) growth {
	g := growth{maxGrowth: maxGrowth}
	g.readSoon()
	return g
}

// rewritten counts a rewrite. It reports whether the next reading is due, which is so after a number of rewrites at the
// latest. sincePause estimates the bytes alone.
func (g *growth) rewritten(resource schema.GroupResource) bool {
	size, most := g.objects[resource], int64(readAfter)
	switch {
	case size.average == 0:
		most = g.maxUnsized
	case size.all <= g.maxGrowth/2:
		most = readAfterIfSmall
	}
	share := g.budget/most + 1
	g.rewrittenBytes += max(size.average, share)
	g.sincePause += cmp.Or(size.average, share)
	return g.rewrittenBytes >= g.budget
}

// roomUsed reports whether the file must not grow any more, and its free pages are used up.
func (g *growth) roomUsed() bool { return g.room > 0 && g.sincePause >= g.room }

// readingOverdue reports whether so much was rewritten since the last reading that nothing more may be before the next
// one.
func (g *growth) readingOverdue() bool { return g.rewrittenBytes >= g.maxGrowth/4 }

// record takes the sizes that were read. counted is what rewrittenBytes was when the reading began. It reports whether
// the file has reached its limit.
func (g *growth) record(now reportedSizes, counted int64) (full bool) {
	soon := counted == 0 // Nothing was rewritten since the last reading, so this one shows no growth by rewrites.
	if size, f := now.file, &g.file; size > 0 {
		if f.last == 0 || g.measuring && size > f.last { // The members of etcd have files of different sizes.
			*f = databaseFile{first: size, last: size, limit: size + g.maxGrowth}
		}
		soon = soon || size-f.last > g.margin() || f.limit-size < 2*g.margin()
		f.last = max(f.last, size)
		full = f.last >= f.limit
	}
	g.objects, g.rewrittenBytes = now.objects, g.rewrittenBytes-counted
	g.budget, g.maxUnsized = g.margin(), min(2*g.maxUnsized, readAfter)
	if soon {
		g.readSoon()
	}
	return full
}

// readSoon makes the next reading come early.
func (g *growth) readSoon() { g.budget, g.maxUnsized = g.margin()/4, readAfterFirst }

// resume sets a new limit after a compaction. If the file has reached its limit, it may grow by one more margin. When
// it has grown by that, it has no free page left.
//
// If the file is twice maxGrowth larger than at the beginning, it must not grow any more. From then on the migrator
// rewrites only as many bytes (room) as the compaction has freed: at first three quarters of what was rewritten since
// the last pause, and a quarter less each time that the file grows nevertheless.
func (g *growth) resume() {
	if f := &g.file; f.last >= f.limit {
		f.limit = f.last + g.margin()
		switch {
		case f.limit <= f.first+2*g.maxGrowth:
		case g.room == 0:
			g.room = max(g.maxGrowth/4, g.sincePause*3/4)
		default:
			g.room = max(g.margin(), g.room*3/4)
		}
	}
	g.sincePause = 0
	g.readSoon()
}

// startMeasurement begins the first readings, when etcd was compacted since the last rewrite.
func (g *growth) startMeasurement() {
	if !g.measuring {
		g.before = g.file
	}
	g.file, g.measuring = databaseFile{}, true
	g.sincePause, g.room = 0, 0
}

// endMeasurement ends the first readings. If the file is at least as large as in the measurement before, nobody
// has defragmented it, and the free pages that the migrator left are still in it. So it gets only what was left of its
// limit then. Growth between the two measurements was caused by other clients, and does not count.
func (g *growth) endMeasurement() {
	g.measuring = false
	if f, before := &g.file, g.before; before.last > 0 && before.last <= f.last {
		f.first, f.limit = f.last-(before.last-before.first), f.last+(before.limit-before.last)
	}
}

// margin is how many bytes are rewritten between two readings, unless the next reading must come early.
func (g *growth) margin() int64 { return g.maxGrowth / 16 }
