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

package controlplane

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	release, err := takeTurn(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 3*pollInterval)
	defer cancel()
	if _, err := takeTurn(short, 1); err == nil {
		t.Error("two have the only turn")
	}
	second, err := takeTurn(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer second()
	time.AfterFunc(3*pollInterval, release)
	third, err := takeTurn(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	third()
}

func TestCalm(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	n, err := runnable()
	if err != nil {
		t.Fatal(err)
	}
	if n < 1 {
		t.Errorf("%d threads run, without the one that asks", n)
	}
	most := crowd * runtime.NumCPU()
	busy, calm := slices.Repeat([]int{most + 1}, crowdSamples), slices.Repeat([]int{most}, crowdSamples)
	for _, samples := range [][]int{nil, calm[1:], busy, slices.Concat(calm, busy)} {
		if isCalm(samples) {
			t.Errorf("%v: a machine that is busy, or not known, counts as calm", samples)
		}
	}
	for _, samples := range [][]int{calm, slices.Concat(busy, calm)} {
		if !isCalm(samples) {
			t.Errorf("%v: a calm machine counts as busy", samples)
		}
	}
}

func TestSeats(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	most, err := countSeats()
	if err != nil || most < runtime.NumCPU() {
		t.Fatalf("there are %d seats: %v", most, err)
	}
	all := make([]func(), most)
	for i := range all {
		leave, err := awaitCalm(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all[i] = leave
	}
	// Whoever waited for a calm machine instead of taking a free seat has left a seat free.
	if unlock, err := lockOneOf("seat", len(all)); err != nil || unlock != nil {
		t.Errorf("there is one more seat, error %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := awaitCalm(ended); err == nil {
		t.Error("a start that was given up waited for a seat without an error")
	}
	all[0]()
	leave, err := awaitCalm(ended)
	if err != nil {
		t.Errorf("a seat that somebody left is not free: %v", err)
	} else {
		leave()
	}
}
