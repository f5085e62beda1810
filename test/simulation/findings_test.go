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
	"strings"
	"testing"
)

// TestFindings plays the histories that found something in Ledger and Decide, or in the model, as README.md lists them,
// and some of their kind.
func TestFindings(t *testing.T) {
	for name, text := range map[string]string{
		"S28: a process whose successor answers, and whose end a watch shows late": diesUnseen,
		"S29: a success that is accepted before etcd has shown who was read": `
			servers 1, release 3, publishing 0, addresses own leases replaced
			slow the migrator down (0, 0), 1m6s, seed 7
			kill and start a server (0, 0), 1s, seed 7
			break a watch (3, 0), 0s, seed 7
			kill and start a server (0, 3), 4m0s, seed 7`,
		"S30: a server that takes over the Lease of a newer one, and that nobody reads": `
			servers 1, release 2, publishing 0, addresses own leases kept
			nothing (0, 0), 4m0s, seed 10
			kill and start a server (0, 0), 3s, seed 10
			kill and start a server (0, 2), 4m0s, seed 10`,
		"S31: a look that met a server that leaves, and an entry that nobody removes": `
			servers 1, release 0, publishing 2, addresses none leases untold
			kill a server (0, 0), 0s, seed 0
			kill and start a server (2, 0), 0s, seed 0
			start a server (0, 2), 0s, seed 0
			upgrade all servers (1, 6), 8s, seed 0
			replace a server by one elsewhere (0, 2), 1m6s, seed 0
			depose the manager (0, 0), 8s, seed 0
			shorten storedVersions (0, 0), 16s, seed 23`,
		"a server that is met in place of a frozen one before its Lease is there": `
			servers 1, release 0, publishing 0, addresses none leases kept
			nothing (0, 0), 2m0s, seed 0
			freeze a server (0, 0), 0s, seed 0
			change the storage version (0, 1), 0s, seed 0
			start a server (1, 0), 0s, seed 0`,
		"S24: a clock that is set back after a look": `
			servers 1, release 0, publishing 0, addresses own leases replaced
			nothing (0, 0), 4m0s, seed 0
			nothing (0, 0), 11m0s, seed 0
			crash the manager (0, 0), 0s, seed 7`,
		"S24: and no look succeeds since": `
			servers 1, release 0, publishing 0, addresses own leases untold
			kill and start a server (1, 0), 0s, seed 0
			kill a server (0, 0), 0s, seed 0
			crash the manager (1, 0), 0s, seed 0
			start a server (0, 2), 0s, seed 0
			slow the migrator down (0, 0), 4m0s, seed 24`,
		"S1: an aggregated resource at two versions": `
			servers 1, release 0, publishing 0, addresses own leases replaced
			flip the aggregated server (0, 0), 0s, seed 0`,
		"S2: a resource that is served no longer": `
			servers 1, release 1, publishing 1, addresses own leases replaced
			restart a server (0, 0), 0s, seed 1`,
		"S3: a look that is older than the migration": `
			servers 1, release 0, publishing 0, addresses own leases replaced
			nothing (0, 0), 11m0s, seed 0
			nothing (0, 0), 30s, seed 0
			nothing (0, 0), 16s, seed 0
			flip the aggregated server (0, 0), 0s, seed 0
			nothing (0, 0), 4m0s, seed 0
			nothing (0, 0), 4m0s, seed 0
			flip the aggregated server (0, 0), 0s, seed 0`,
		"S4: servers that cannot be asked, and a manager that has heard of no resource": `
			servers 1, release 0, publishing 0, addresses own leases replaced
			nothing (0, 0), 1m6s, seed 0
			kill a server (0, 0), 0s, seed 1
			depose the manager (0, 0), 0s, seed 0
			start a server (2, 1), 1s, seed 0
			nothing (0, 0), 1s, seed 0
			kill a server (2, 0), 0s, seed 0`,
		"S4: and which nobody tells of changes": `
			servers 1, release 0, publishing 0, addresses own leases replaced
			nothing (0, 0), 1m6s, seed 0
			kill a server (0, 0), 0s, seed 0
			depose the manager (0, 0), 0s, seed 0
			break a watch (1, 0), 30s, seed 0
			start a server (2, 1), 1s, seed 0
			nothing (0, 0), 1s, seed 0
			kill a server (2, 0), 0s, seed 0`,
		"S5: a hidden address, and one of a server that left": `
			servers 1, release 3, publishing 0, addresses own leases replaced
			start a server (1, 2), 0s, seed 0
			restart a server (3, 0), 3s, seed 0
			hide an address (3, 0), 0s, seed 0
			stop a server (0, 0), 2m0s, seed 2`,
		"S7: a server that ceases to publish": `
			servers 3, release 0, publishing 2, addresses own leases replaced
			upgrade all servers (0, 1), 0s, seed 0
			kill and start a server (3, 0), 1m6s, seed 0
			restart a server (0, 6), 30s, seed 1`,
		"S9: documents of processes long gone": `
			servers 2, release 0, publishing 1, addresses own leases replaced
			upgrade all servers (0, 1), 1m6s, seed 0
			hide an address (0, 0), 2m0s, seed 0
			delete a Lease (0, 0), 0s, seed 0`,
		"S10: what was glimpsed of a server that left": `
			servers 1, release 3, publishing 0, addresses own leases replaced
			replace a server by one elsewhere (1, 1), 0s, seed 0
			stop a server (0, 0), 0s, seed 0
			restart a server (1, 0), 0s, seed 13`,
		"S11: no Lease at all, and a new state": `
			servers 3, release 0, publishing 0, addresses own leases replaced
			hide an address (2, 0), 0s, seed 0
			upgrade all servers (0, 2), 3s, seed 5
			delete a state (0, 0), 0s, seed 0`,
		"S12: a manager that starts after a server left": `
			servers 2, release 0, publishing 0, addresses own leases replaced
			hide an address (1, 0), 0s, seed 0
			stop a server (1, 0), 0s, seed 0
			start a server (2, 0), 1m6s, seed 0
			start a server (1, 2), 0s, seed 0
			stop a server (0, 0), 0s, seed 1
			depose the manager (0, 0), 0s, seed 0`,
		"S14: a server that left answers behind the balancer": `
			servers 1, release 0, publishing 2, addresses own leases replaced
			nothing (0, 0), 4m0s, seed 0
			kill and start a server (3, 0), 0s, seed 22
			ask for another attempt (0, 2), 1s, seed 4
			upgrade all servers (1, 5), 1m6s, seed 6928`,
		"S16: a name of a storage that is younger than the other": `
			servers 1, release 2, publishing 0, addresses own leases replaced
			delete a state (0, 5), 0s, seed 0`,
		"S17: one of two servers without addresses stops": `
			servers 2, release 0, publishing 0, addresses none leases replaced
			nothing (0, 0), 1s, seed 0`,
		"S18: a server that crashes, whose successor answers": `
			servers 1, release 1, publishing 0, addresses own leases replaced
			nothing (0, 0), 1m6s, seed 0
			let a server crash again and again (0, 3), 3s, seed 2`,
		"S19: a name of a storage that waited for writes about the other": `
			servers 3, release 0, publishing 0, addresses own leases replaced
			start a server (3, 0), 30s, seed 0
			upgrade all servers (3, 2), 8s, seed 204
			nothing (0, 0), 3s, seed 0
			nothing (0, 0), 30s, seed 0
			nothing (0, 0), 8s, seed 0
			nothing (0, 0), 1s, seed 0
			replace a server by one elsewhere (0, 1), 0s, seed 0
			delete a state (0, 0), 30s, seed 6`,
		"S20: a server that was met before its Lease was there": `
			servers 1, release 0, publishing 0, addresses none leases replaced
			freeze a server (0, 1), 0s, seed 0
			start a server (2, 1), 0s, seed 1
			start a server (1, 1), 1m6s, seed 0
			replace a server by one elsewhere (1, 1), 16s, seed 0
			replace a server by one elsewhere (0, 0), 8s, seed 21`,
		"S21: a server that takes over the Lease of a newer one": `
			servers 1, release 2, publishing 0, addresses own leases kept
			let a server crash again and again (0, 0), 0s, seed 0`,
		"S26: a server that stops answers for one whose address is not there yet": `
			servers 1, release 0, publishing 0, addresses own leases replaced
			restart a server (1, 0), 0s, seed 2
			hold back the definition from a server (1, 0), 0s, seed 0
			change the storage version twice (0, 0), 0s, seed 0
			stop a server (0, 0), 0s, seed 2`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s, err := parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.play(mutant{}, nil); err != nil {
				t.Error(err)
				_, _ = s.play(mutant{}, func(line string) { t.Log(line) })
			}
		})
	}
}

// TestScriptsCanBeReadBack makes sure that a history in a test is the one that was told.
func TestScriptsCanBeReadBack(t *testing.T) {
	for seed := range 100 {
		s := scripts.Example(seed)
		read, err := parse(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := read.String(), s.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestHistoriesRepeat makes sure that a seed always gives the same history.
func TestHistoriesRepeat(t *testing.T) {
	for seed := range 50 {
		var told [2][]string
		for i := range told {
			_, _ = scripts.Example(seed).play(mutant{}, func(line string) { told[i] = append(told[i], line) })
		}
		if first, second := strings.Join(told[0], "\n"), strings.Join(told[1], "\n"); first != second {
			t.Errorf("seed %d has two histories", seed)
		}
	}
}
