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
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestGrowth(t *testing.T) {
	const bound = 160 // so the margin is 10
	g := newGrowth(bound)
	for i, step := range []struct {
		what       string
		last       int64
		full, soon bool
		resume     bool
	}{
		{what: "the first size is where growth begins", last: 1000},
		{what: "little growth", last: 1010},
		{what: "much growth at once", last: 1021, soon: true},
		{what: "a member of etcd with a smaller file", last: 700},
		{what: "the growth counts from the larger file", last: 1031},
		{what: "near the bound", last: 1141, soon: true},
		{what: "at the bound", last: 1160, full: true, soon: true},
		{what: "after a compaction the file is not larger", last: 1160, soon: true, resume: true},
		{what: "no page is free any more", last: 1170, full: true, soon: true},
		{what: "it grows no more", last: 1170, soon: true, resume: true},
	} {
		if step.resume {
			g.resume()
		}
		g.rewritten(widgets)
		full := g.record(reportedSizes{file: step.last}, g.rewrittenBytes)
		soon := g.maxUnsized == readAfterFirst
		if full != step.full || soon != step.soon {
			t.Errorf("step %d, %s: full is %t and soon is %v", i, step.what, full, soon)
		}
	}
}

// TestHowOftenSizesAreRead counts the rewrites between readings, with the default bound.
func TestHowOftenSizesAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		objects objectSizes
		grows   int64 // by how much the file grows between two readings
		want    []int
	}{
		"objects whose size nobody tells": {want: []int{50, 100, 200, 400, 500, 500}},
		"small objects":                   {objects: objectSizes{1500, 64 * mebibyte}, want: []int{1399, 5000, 5000}},
		"many objects, perhaps some large": {
			objects: objectSizes{1500, 64*mebibyte + 1}, want: []int{500, 500, 500},
		},
		"large objects": {objects: objectSizes{100_000, 1 << 30}, want: []int{21, 84, 84}},
		"the file grows, first by much, then to the bound": {
			objects: objectSizes{100_000, 1 << 30}, grows: 9 * mebibyte, want: []int{21, 21, 21},
		},
		"objects of unknown size make the file grow": {grows: 9 * mebibyte, want: []int{50, 50, 50}},
	} {
		t.Run(name, func(t *testing.T) {
			g, size := newGrowth(128*mebibyte), int64(1<<30)
			read := func() {
				g.record(reportedSizes{
					file:    size,
					objects: map[schema.GroupResource]objectSizes{widgets: test.objects},
				}, g.rewrittenBytes)
				size += test.grows
			}
			read()
			var got []int
			for range test.want {
				rewrites := 1
				for !g.rewritten(widgets) {
					rewrites++
				}
				got = append(got, rewrites)
				read()
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("rewrites between readings: %v, want %v", got, test.want)
			}
		})
	}
}

// TestReadingThatTakesLong has rewrites go on while the sizes are read.
func TestReadingThatTakesLong(t *testing.T) {
	g := newGrowth(128 * mebibyte)
	size := reportedSizes{
		file:    1 << 30,
		objects: map[schema.GroupResource]objectSizes{widgets: {100_000, 1 << 30}},
	}
	g.record(size, 0)
	for !g.rewritten(widgets) {
	}
	began := g.rewrittenBytes
	rewrites := 0
	for ; !g.readingOverdue(); rewrites++ {
		g.rewritten(widgets)
	}
	if rewrites < 100 || rewrites > 400 {
		t.Errorf("%d objects of 100 kB were rewritten during one reading, with a bound of 128 MiB", rewrites)
	}
	g.record(size, began)
	if want := int64(rewrites) * 100_000; g.rewrittenBytes != want {
		t.Errorf("%d bytes count as rewritten since the reading began, want %d", g.rewrittenBytes, want)
	}
}

// etcdFile is the database file of an etcd that nobody defragments.
type etcdFile struct{ size, free, garbage int64 }

func (f *etcdFile) write(size int64) {
	f.garbage += size
	if f.free >= size {
		f.free -= size
	} else {
		f.size += size
	}
}

func (f *etcdFile) compact() { f.free, f.garbage = f.free+f.garbage, 0 }

// TestTheFileStopsToGrow rewrites many times more than the bound, in migrations that are more than an hour apart.
func TestTheFileStopsToGrow(t *testing.T) {
	const bound, object = 128 * mebibyte, 100_000
	for name, test := range map[string]struct {
		told   objectSizes
		others int64 // for each rewrite
	}{
		"objects of a known size":    {told: objectSizes{object, 1 << 40}},
		"objects of an unknown size": {},
		"others write as much":       {told: objectSizes{object, 1 << 40}, others: object},
	} {
		t.Run(name, func(t *testing.T) {
			file, g := etcdFile{size: 1 << 30}, newGrowth(bound)
			read := func() (full bool) {
				return g.record(reportedSizes{
					file:    file.size,
					objects: map[schema.GroupResource]objectSizes{widgets: test.told},
				}, g.rewrittenBytes)
			}
			for migration := range 6 {
				g.startMeasurement()
				read()
				g.endMeasurement()
				pauses := 0
				for range 50_000 {
					file.write(object + test.others)
					full := g.rewritten(widgets) && read()
					if full || g.roomUsed() {
						pauses++
						file.compact()
						g.resume()
					}
				}
				file.compact()
				grown := (file.size - 1<<30) / mebibyte
				t.Logf("migration %d: %d pauses, the file has grown by %d MiB", migration, pauses, grown)
				if grown > 5*bound/2/mebibyte || pauses > 100 {
					t.Errorf("the file has grown by %d MiB after %d pauses", grown, pauses)
				}
			}
		})
	}
}
