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
	"fmt"
	"time"
	"unsafe"
)

// reading is a time.Time as time.Now returns it: what the clock of the host shows, and how much time has passed. Go
// compares two readings by the time that passed, so that a clock that is set changes nothing, and a reading with a time
// of the API by what the clock showed. The package time has no way to make a reading, so it is made as the runtime
// does.
type reading struct {
	wall     uint64 // a flag, seconds since 1885 in 33 bits, nanoseconds in 30 bits
	passed   int64
	location *time.Location
}

var since1885 = time.Date(1885, time.January, 1, 0, 0, 0, 0, time.UTC)

// read returns the reading of a clock that shows a time.
func read(shows time.Time, passed time.Duration) time.Time {
	const flag, nanosecondBits = 1 << 63, 30
	seconds := uint64(shows.Unix() - since1885.Unix())
	r := reading{wall: flag | seconds<<nanosecondBits | uint64(shows.Nanosecond()), passed: int64(passed)}
	return *(*time.Time)(unsafe.Pointer(&r))
}

// init makes sure that the runtime understands readings.
func init() {
	before, after := read(beginning, time.Second), read(beginning.Add(-time.Hour), 2*time.Second)
	if !before.Round(0).Equal(beginning) || after.Sub(before) != time.Second ||
		after.Round(0).Sub(before.Round(0)) != -time.Hour {
		panic(fmt.Sprintf("the runtime has other readings: %v, %v", before, after))
	}
}

// setClocks has the clock of the manager's host set now and then, until everything comes to rest: by how much it is
// ahead is one of skews.
func (m *manager) setClocks(host dice) {
	if host.below(3) != 0 {
		return
	}
	for at, n := time.Duration(0), host.below(4); n >= 0; n-- {
		at += time.Duration(host.below(600)) * time.Second
		to := skews[host.below(len(skews))]
		m.w.after(at, func() {
			if m.w.manager == m && !m.w.quiet {
				m.w.log("the clock of the manager is set: it is %v ahead", to)
				m.skew = to
			}
		})
	}
}
