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

package cli

import (
	"fmt"
	"slices"
	"strings"
)

// mostNearNames bounds how many names an error suggests.
const mostNearNames = 5

// unknown returns the error for a name that no resource has. It suggests similar names.
func (c *Catalog) unknown(name string) error {
	hint := ""
	if c.Incomplete != nil {
		hint = fmt.Sprintf(" But %v.", c.Incomplete)
	}
	if near := c.near(name); len(near) > 0 {
		return fmt.Errorf("no resource is named %q. Did you mean %s?%s", name, strings.Join(near, ", "), hint)
	}
	return fmt.Errorf("no resource is named %q: write its plural, as in \"widgets\" or \"widgets.example.com\"; "+
		"\"kubectl api-resources\" lists all.%s", name, hint)
}

// near returns the names of resources that need the fewest changes, if those are few, and names that contain the name.
func (c *Catalog) near(name string) []string {
	type candidate struct {
		name    string
		changes int
	}
	var candidates []candidate
	for _, r := range c.resources {
		full, changes := r.String(), len(name)
		for _, other := range append([]string{full, r.Resource}, r.ShortNames...) {
			changes = min(changes, distance(name, other))
		}
		if changes <= min(1+len(name)/4, len(name)-1) || len(name) > 2 && strings.Contains(full, name) {
			candidates = append(candidates, candidate{full, changes})
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.changes - b.changes })
	var names []string
	for _, c := range candidates[:min(mostNearNames, len(candidates))] {
		names = append(names, c.name)
	}
	return names
}

// distance is how many bytes have to be added, removed or replaced to turn a into b.
func distance(a, b string) int {
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current := make([]int, len(b)+1)
		current[0] = i + 1
		for j := range len(b) {
			replaced := previous[j]
			if a[i] != b[j] {
				replaced++
			}
			current[j+1] = min(replaced, previous[j+1]+1, current[j]+1)
		}
		previous = current
	}
	return previous[len(b)]
}
