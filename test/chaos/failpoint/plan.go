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

package failpoint

import (
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// mostPause is how long a pause between two faults is at most.
	mostPause = 6 * time.Second
	// leastChange and mostChange bound the time between two changes. A migration takes longer than the settle period.
	leastChange, mostChange = 8 * time.Second, 18 * time.Second
)

// Step is a fault or a change of a plan.
type Step struct {
	// At is when it begins, For how long it lasts: zero if it is over at once.
	At, For time.Duration
	Kind    string
	// Dice chooses which server or manager it is about.
	Dice uint64
	// Busy delays a fault until a migration rewrites objects, if there is one soon.
	Busy bool
}

func (s Step) String() string {
	return fmt.Sprintf("%6.1f s: %s for %.1f s (%d)", s.At.Seconds(), s.Kind, s.For.Seconds(), s.Dice%100)
}

// Plan is what happens in a round.
type Plan struct {
	// Faults come one after the other. Changes are what administrators do meanwhile.
	Faults, Changes []Step
	// Length is after which time no fault begins any more.
	Length time.Duration
}

// Deck deals kinds in a random order, each as many times as the others.
type Deck struct {
	random *rand.Rand
	kinds  []string
	left   []string
}

func (d *Deck) deal() string {
	if len(d.left) == 0 {
		d.left = append(d.left, d.kinds...)
		d.random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	kind := d.left[0]
	d.left = d.left[1:]
	return kind
}

// Planner makes the plans of a run. Equal seeds give equal plans, whatever happens in the rounds.
type Planner struct {
	random          *rand.Rand
	faults, changes *Deck
}

// NewPlanner deals the faults of the given kinds, or of all if none are given.
func NewPlanner(seed uint64, only ...string) *Planner {
	random := rand.New(rand.NewPCG(seed, 0))
	if len(only) == 0 {
		only = Kinds()
	}
	return &Planner{
		random: random, faults: &Deck{random: random, kinds: only},
		// An upgrade starts three servers again, one at a time: once in every five changes is enough.
		changes: &Deck{random: random, kinds: []string{flipGears, flipSprings, flipGears, flipSprings, upgrade}},
	}
}

// Round makes the plan of the next round.
func (p *Planner) Round(length time.Duration) Plan {
	plan := Plan{Length: length}
	for at := time.Duration(0); at < length; {
		kind := p.faults.deal()
		step := Step{At: at, Kind: kind, Dice: p.random.Uint64(), Busy: p.random.IntN(4) > 0}
		least, most := kinds[kind].least, kinds[kind].most
		step.For = min(least+time.Duration(p.random.Int64N(int64(most-least)+1)), length/2)
		plan.Faults = append(plan.Faults, step)
		at += step.For + time.Duration(p.random.Int64N(int64(mostPause)))
	}
	for at := time.Duration(0); ; {
		at += leastChange + time.Duration(p.random.Int64N(int64(mostChange-leastChange)))
		if at >= length*2/3 { // Migrations of the last changes are to run among faults as well.
			return plan
		}
		step := Step{At: at, Kind: p.changes.deal()}
		if step.Kind == upgrade && at > length/3 {
			step.Kind = flipGears // It would take longer than the round.
		}
		plan.Changes = append(plan.Changes, step)
	}
}
