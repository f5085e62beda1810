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

// backInAGap has a server be back while the manager is cut off.
const backInAGap = `
	servers 2, release 0, publishing 0, addresses own leases replaced
	nothing (0, 0), 4m0s, seed 0
	nothing (0, 0), 4m0s, seed 0
	stop a server (1, 0), 1m6s, seed 0
	nothing (0, 0), 1m6s, seed 0
	cut the manager off (2, 0), 1s, seed 0
	start a server (1, 2), 8s, seed 0
	stop a server (1, 0), 4m0s, seed 0`

// leftInAStandby has a server come when the leader cannot write, and leave before the standby leads.
const leftInAStandby = `
	servers 1, release 1, publishing 0, addresses advertised leases replaced
	nothing (0, 0), 4m0s, seed 0
	nothing (0, 0), 4m0s, seed 0
	let the API server fail (0, 2), 0s, seed 0
	start a server (1, 2), 8s, seed 0
	depose the manager (0, 1), 2m0s, seed 0
	stop a server (1, 0), 4m0s, seed 2`

// answersForAnother has a server that stops answer in the place of one that is frozen.
const answersForAnother = `
	servers 3, release 0, publishing 0, addresses none leases replaced
	nothing (0, 0), 2m0s, seed 0
	freeze a server (0, 0), 0s, seed 289
	stop a server (1, 0), 0s, seed 289
	change the storage version (0, 1), 4m0s, seed 289`

// diesUnseen has a process live for two seconds. The manager reads its successor in its place, and a watch that hangs
// shows only later that it has gone.
const diesUnseen = `
	servers 3, release 2, publishing 0, addresses advertised leases replaced
	nothing (0, 0), 4m0s, seed 0
	nothing (0, 0), 4m0s, seed 0
	kill and start a server (2, 1), 1s, seed 0
	nothing (0, 0), 1s, seed 0
	stop a server (0, 0), 100ms, seed 0
	break a watch (3, 6), 0s, seed 0
	kill and start a server (2, 2), 4m0s, seed 0`

// comesUnseen has a server come while the watch of Leases is broken and a migration ends.
const comesUnseen = `
	servers 1, release 0, publishing 0, addresses own leases replaced
	slow the migrator down (2, 0), 1m6s, seed 6
	break a watch (3, 0), 0s, seed 6
	start a server (1, 3), 30s, seed 6`

// readInItsPlace has a process live for three seconds. The manager reads its successor in its place, just before a
// migration ends.
const readInItsPlace = `
	servers 1, release 3, publishing 0, addresses own leases replaced
	slow the migrator down (1, 0), 1m6s, seed 34
	kill and start a server (0, 0), 3s, seed 34
	kill and start a server (0, 3), 4m0s, seed 34`

// changesUnseen has a definition change while its watch is broken, and no server follows yet when a migration ends.
const changesUnseen = `
	servers 1, release 0, publishing 0, addresses own leases replaced
	nothing (0, 0), 1m6s, seed 0
	slow the migrator down (2, 0), 1m6s, seed 9
	nothing (0, 0), 30s, seed 9
	break a watch (3, 2), 3s, seed 9
	change the storage version (0, 1), 30s, seed 9`

// comesBack has a server be frozen while a definition changes and everything is migrated.
const comesBack = `
	servers 2, release 3, publishing 0, addresses advertised leases replaced
	nothing (0, 0), 2m0s, seed 17
	freeze a server (1, 2), 30s, seed 27
	change the storage version (0, 1), 2m0s, seed 6
	nothing (0, 0), 30s, seed 10`
