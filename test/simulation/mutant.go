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
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// mutant is a mistake that Ledger or Decide could make. It is made by changing what goes into them or comes out, so
// that their code has no places for it. The zero value makes none.
type mutant struct {
	living     func(living []storageversion.Process, unbroken bool) ([]storageversion.Process, bool)
	look       func(storageversion.Look) storageversion.Look
	definition func(*storageversion.Definition) *storageversion.Definition
	aggregated func(*storageversion.AggregatedDocument) *storageversion.AggregatedDocument
	// name tells by what the observer tells the process behind a connection from others.
	name func(s *server, connection int) string
	// observation changes what both the trigger and the migrator know.
	observation func(*storageversion.Observation)
	input       func(*world, *svmtrigger.Input)
	decision    func(*world, svmtrigger.Input, *svmtrigger.Decision)
	// createsFirst has migrations created before the state is written that they rest on.
	createsFirst bool
	// trustsStates has migrations created without reading the state.
	trustsStates bool
	// forgetsFollowers has migrations of custom resources start and succeed without asking the servers.
	forgetsFollowers bool
	// survivesRestores has the manager go on with what it knows when etcd is restored.
	survivesRestores bool
	// forgetsMissing has only servers asked that are ready.
	forgetsMissing bool
	// forgetsLost has servers asked behind a balancer although one may answer whose Lease is gone.
	forgetsLost bool
	// forgetsWhoWasBack has nobody be there in a gap of a watch who was not there before.
	forgetsWhoWasBack bool
	// trustsWatch takes what the watch of Leases has shown for what etcd has.
	trustsWatch bool
	// asksFollowersOnce has them start as soon as all servers follow.
	asksFollowersOnce bool
	// goesOn has a migration go on, and succeed, whatever the program decides.
	goesOn bool
	// trustsLeases, trustsPolls and trustsLooks have migrations succeed without asking etcd who holds the Leases, without
	// reading the aggregated server, and before etcd has shown that the processes were read which live.
	trustsLeases, trustsPolls, trustsLooks bool
	// prunesBlindly has status.storedVersions pruned although the definition has changed.
	prunesBlindly bool
}

// nameOf returns what stands for the process behind a connection: when it started, unless that is mistaken.
func (m *mutant) nameOf(s *server, connection int) string {
	if m.name != nil {
		return m.name(s, connection)
	}
	return s.incarnation
}
