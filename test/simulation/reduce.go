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

import "slices"

// reduce makes a script that fails as small as it gets by leaving things out one at a time, which rapid does not try
// for long.
func reduce(s script, fails func(script) bool) script {
	for again := true; again; {
		again = false
		try := func(smaller script) {
			if fails(smaller) {
				s, again = smaller, true
			}
		}
		for i := len(s.Steps) - 1; i >= 0; i-- {
			if i >= len(s.Steps) {
				continue
			}
			try(script{s.Setting, slices.Delete(slices.Clone(s.Steps), i, i+1)})
		}
		for i := len(s.Steps) - 2; i >= 0; i-- {
			if i+1 < len(s.Steps) && s.Steps[i+1].Do == 0 {
				for wait := range len(waits) {
					if i+1 >= len(s.Steps) {
						break // The step has gone with a wait before this one.
					}
					steps := slices.Delete(slices.Clone(s.Steps), i+1, i+2)
					steps[i].Wait = wait
					try(script{s.Setting, steps})
				}
			}
		}
		for i := range s.Steps {
			for _, smaller := range s.Steps[i].smaller() {
				steps := slices.Clone(s.Steps)
				steps[i] = smaller
				if smaller.simpler(s.Steps[i]) {
					try(script{s.Setting, steps})
				}
			}
		}
		for _, smaller := range s.Setting.smaller() {
			if smaller != s.Setting {
				try(script{smaller, s.Steps})
			}
		}
	}
	return s
}

// smaller are settings like this one with one thing less in it.
func (s setting) smaller() []setting {
	fewer, older, silent, simple := s, s, s, s
	fewer.servers, older.release, silent.publishing, simple.addressing = max(s.servers-1, 1), 0, noneOfThem, own
	return []setting{fewer, older, silent, simple}
}

// smaller are steps like this one with less in it.
func (s step) smaller() []step {
	var all []step
	vary := func(n int, change func(*step, int)) {
		for i := range n {
			one := s
			change(&one, i)
			all = append(all, one)
		}
	}
	vary(1, func(one *step, _ int) { one.Do, one.Who, one.What, one.Seed = 0, 0, 0, 0 })
	vary(1, func(one *step, _ int) { one.Seed = 0 })
	vary(s.Wait, func(one *step, i int) { one.Wait = i })
	vary(s.Who, func(one *step, i int) { one.Who = i })
	vary(s.What, func(one *step, i int) { one.What = i })
	if s.Seed > 40 {
		vary(40, func(one *step, i int) { one.Seed = uint64(i + 1) })
	}
	return all
}

// simpler orders steps, so that reducing ends.
func (s step) simpler(than step) bool {
	return slices.Compare([]uint64{uint64(min(s.Do, 1)), s.Seed, uint64(s.Wait), uint64(s.Who), uint64(s.What)},
		[]uint64{uint64(min(than.Do, 1)), than.Seed, uint64(than.Wait), uint64(than.Who), uint64(than.What)}) < 0
}
