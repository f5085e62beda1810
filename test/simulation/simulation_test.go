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

package simulation

import (
	"flag"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	histories = flag.Int("histories", 3000, "how many histories are played")
	seed      = flag.Int("seed", 1, "the seed of the first history; the others count up from it. 0 stands for the time")
	kinds     = flag.Int("kinds", 1, "end when that many kinds of violations were found")
	tell      = flag.Bool("tell", false, "tell everything that happens in the first history")
)

// scripts are all histories. A seed stands for one of them. Steps that do nothing make them shorter than they look.
var scripts = rapid.Custom(func(t *rapid.T) script {
	return script{
		Setting: setting{
			servers:    rapid.IntRange(1, 3).Draw(t, "servers"),
			release:    rapid.IntRange(0, releases-1).Draw(t, "release"),
			publishing: publishing(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "publishing")),
			addressing: rapid.SampledFrom(
				[]addressing{own, own, advertised, advertised, advertised, shared, none}).Draw(t, "addressing"),
			leasing: rapid.SampledFrom([]leasing{replaced, replaced, replaced, kept, kept, untold}).Draw(t, "leasing"),
		},
		Steps: rapid.SliceOfN(steps, 8, 24).Draw(t, "steps"),
	}
})

var steps = rapid.Custom(func(t *rapid.T) step {
	return step{
		Do:   rapid.SampledFrom(positions(len(actions)-rare)).Draw(t, "do"),
		Who:  rapid.SampledFrom(positions(4)).Draw(t, "who"),
		What: rapid.SampledFrom(positions(24)).Draw(t, "what"),
		Wait: rapid.SampledFrom(positions(len(waits))).Draw(t, "wait"),
		Seed: rapid.Uint64().Draw(t, "seed"),
	}.orRare()
})

func positions(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestMain(m *testing.M) {
	// Histories are short and use little memory: collecting garbage less often makes more of them.
	debug.SetGCPercent(2000)
	os.Exit(m.Run())
}

func TestHistories(t *testing.T) {
	first := *seed
	if first == 0 {
		first = int(time.Now().UnixNano() >> 16)
	}
	t.Logf("%d histories from seed %d on; -seed=%d -histories=1 repeats the first", *histories, first, first)
	if *tell {
		s := scripts.Example(first)
		t.Log(s)
		_, _ = s.play(mutant{}, func(line string) { t.Log(line) })
	}
	found := findings{first: map[string]int{}, count: map[string]int{}}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(*histories) && !found.enough(); i = next.Add(1) - 1 {
				one := first + int(i)
				if _, err := scripts.Example(one).play(mutant{}, nil); err != nil {
					found.add(one, err)
				}
			}
		})
	}
	workers.Wait()
	for _, kind := range slices.Sorted(maps.Keys(found.first)) {
		shrink(t, found.first[kind], kind, found.count[kind])
	}
}

// findings are the seeds of histories that violate a promise, by what they violate.
type findings struct {
	mu    sync.Mutex
	first map[string]int
	count map[string]int
}

func (f *findings) add(seed int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind := kindOf(err)
	if before, found := f.first[kind]; !found || seed < before {
		f.first[kind] = seed
	}
	f.count[kind]++
}

func (f *findings) enough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.first) >= *kinds
}

// shrink shows the smallest history that rapid, and then reduce, find behind a seed.
func shrink(t *testing.T, one int, kind string, count int) {
	t.Helper()
	t.Errorf("%d histories violate a promise like that of seed %d; -seed=%d -histories=1 repeats it", count, one, one)
	for name, value := range map[string]string{
		"rapid.checks": "1", "rapid.seed": strconv.Itoa(one), "rapid.nofailfile": "true", "rapid.shrinktime": "1s",
	} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	last := scripts.Example(one)
	violates := func(s script) bool {
		_, err := s.play(mutant{}, nil)
		return err != nil && kindOf(err) == kind
	}
	t.Run(kind, func(t *testing.T) {
		t.Cleanup(func() {
			last = reduce(last, violates)
			var told []string
			_, _ = last.play(mutant{}, func(line string) { told = append(told, line) })
			t.Logf("%v\n%s", last, strings.Join(told, "\n"))
		})
		rapid.Check(t, func(t *rapid.T) {
			if s := scripts.Draw(t, "script"); violates(s) {
				last = s
				t.Fatal(kind)
			}
		})
	})
}

// kindOf is the beginning of what went wrong: a history must not shrink to another one.
func kindOf(err error) string {
	text := err.Error()
	if _, after, found := strings.Cut(text, ": "); found {
		text = after
	}
	words := strings.Fields(text)
	return strings.Join(words[:min(len(words), 6)], " ")
}
