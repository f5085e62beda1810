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

package svmtrigger

import "testing"

// cacheAt is a cache that has come to a resource version.
type cacheAt string

func (c cacheAt) LastStoreSyncResourceVersion() string { return string(c) }

func TestOwnWritesBecomeVisible(t *testing.T) {
	for name, tc := range map[string]struct {
		written, cached string
		want            bool
	}{
		"nothing was written":                     {"", "9", true},
		"the cache is behind":                     {"10", "9", false},
		"the cache shows the write":               {"10", "10", true},
		"the cache is ahead":                      {"10", "11", true},
		"the version of the cache is not known":   {"10", "", true},
		"the versions are none of the API server": {"ten", "9", true},
	} {
		t.Run(name, func(t *testing.T) {
			writes := newOwnWrites(cacheAt(tc.cached))
			if tc.written != "" {
				writes.wrote(widgets, tc.written)
			}
			if got := writes.visible(widgets); got != tc.want {
				t.Errorf("visible: %t, want %t", got, tc.want)
			}
			if !writes.visible(gadgets) {
				t.Error("the write to one resource hides another")
			}
			if tc.want && len(writes.last) > 0 {
				t.Errorf("still remembers %v", writes.last)
			}
		})
	}
}
