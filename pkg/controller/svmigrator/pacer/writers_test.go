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

package pacer

import (
	"testing"
	"time"
)

func TestWriters(t *testing.T) {
	for name, tt := range map[string]struct {
		theirs  int // writes of others after each of ours
		lanes   int // how many lanes write after each other, each 100 times
		out     int // other requests that are out
		noticed bool
	}{
		"nobody else":                       {lanes: 1},
		"several lanes, nobody else":        {lanes: 5},
		"others":                            {lanes: 1, theirs: 1, noticed: true},
		"others, several lanes":             {lanes: 5, theirs: 1, noticed: true},
		"no more than what may be ours":     {lanes: 1, theirs: 1, out: 100},
		"the objects are in another etcd":   {lanes: 1, theirs: -1},
		"etcd gets an earlier revision":     {lanes: 1, theirs: -10},
		"others, who write more than we do": {lanes: 1, theirs: 10, out: 100, noticed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, now, revision, ours, begun := writers{}, time.Unix(1e9, 0), int64(1e6), int64(0), 0
			for i := range 301 {
				now = now.Add(10 * time.Millisecond)
				ours += int64(tt.lanes)
				revision += int64(tt.lanes + tt.theirs)
				if w.count(revision, ours, tt.out, now) {
					begun++
				}
				if i == 0 && (w.noticed() || w.none(now)) {
					t.Error("one write says nothing")
				}
			}
			if w.none(now) == tt.noticed || w.none(now.Add(quietFor)) {
				t.Errorf("it is known that nobody writes: %t, and after a while without a count: %t", w.none(now),
					w.none(now.Add(quietFor)))
			}
			if w.noticed() != tt.noticed || begun > 1 || (begun == 1) != tt.noticed {
				t.Errorf("others write %v objects a second, and have begun to %d times", w.perSecond, begun)
			}
		})
	}
}
