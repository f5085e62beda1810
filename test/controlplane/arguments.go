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
	"maps"
	"slices"
	"strconv"
	"strings"
)

// arguments are command line arguments, each of the form --name=value.
type arguments []string

// with appends extra and drops what it sets too, so that a flag that is not a list can be overridden.
func (a arguments) with(extra ...string) arguments {
	set := map[string]bool{}
	for _, arg := range extra {
		if name, isFlag := flagName(arg); isFlag {
			set[name] = true
		}
	}
	merged := make(arguments, 0, len(a)+len(extra))
	for _, arg := range a {
		if name, isFlag := flagName(arg); !isFlag || !set[name] {
			merged = append(merged, arg)
		}
	}
	return append(merged, extra...)
}

func flagName(arg string) (name string, isFlag bool) {
	if !strings.HasPrefix(arg, "-") {
		return "", false
	}
	name, _, _ = strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return name, true
}

// joinGates renders feature gates as a flag's value, in a stable order.
func joinGates(gates map[string]bool) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		pairs = append(pairs, name+"="+strconv.FormatBool(gates[name]))
	}
	return strings.Join(pairs, ",")
}
