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

package rewrite

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

func TestMergeSweeps(t *testing.T) {
	first := sweep.Counts{sweep.Rewritten: 10, sweep.Denied: 5}
	for name, test := range map[string]struct{ second, want sweep.Counts }{
		"each of them has another outcome": {
			second: sweep.Counts{
				sweep.Rewritten: 1, sweep.Gone: 1, sweep.WrittenByOthers: 1, sweep.AlreadyCurrent: 1, sweep.Denied: 1,
			},
			want: sweep.Counts{
				sweep.Rewritten: 11, sweep.Gone: 1, sweep.WrittenByOthers: 1, sweep.AlreadyCurrent: 1, sweep.Denied: 1,
			},
		},
		"others were gone through as well": {
			second: sweep.Counts{sweep.Rewritten: 3, sweep.AlreadyCurrent: 200, sweep.Denied: 1},
			want:   sweep.Counts{sweep.Rewritten: 13, sweep.AlreadyCurrent: 1, sweep.Denied: 1},
		},
		"an outcome is unknown": {
			second: sweep.Counts{sweep.NoOutcome: 1, sweep.Rewritten: 4},
			want:   sweep.Counts{sweep.Rewritten: 14, sweep.Denied: 1},
		},
		"none of them is there any more": {
			second: sweep.Counts{},
			want:   sweep.Counts{sweep.Rewritten: 10, sweep.AlreadyCurrent: 5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := mergeSweeps(first, test.second)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("the counts differ (-want +got):\n%s", diff)
			}
			if got.Processed() != first.Processed() {
				t.Errorf("%d objects became %d", first.Processed(), got.Processed())
			}
		})
	}
}
