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

package storageversion

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
)

// SharesAddresses reports whether servers may share the addresses at which servers answer. Then an address does not
// tell which server answers there. If all servers advertise an address, they share if several advertise the same one,
// or if none of those addresses answers. Otherwise they share if fewer addresses answer than servers live. certain
// means that they advertise the addresses that they share. If it is false, more addresses may still appear.
func (l *LivingServers) SharesAddresses(answering []string) (shares, certain bool) {
	own, shown := l.advertised(answering)
	switch allAdvertise := !own.Has(""); {
	case allAdvertise && shown:
		// Some may also have an address that nobody advertises, such as another one of a load balancer.
		shares = len(own) < len(l.Living)
		return shares, shares
	case allAdvertise && len(l.Living) > 1:
		return true, false // They advertise other addresses.
	default:
		return len(answering) < len(l.Living), false
	}
}

// advertised returns the addresses that living servers advertise, "" if one does not. shown says that one of them is
// among those at which servers answer.
func (l *LivingServers) advertised(answering []string) (own sets.Set[string], shown bool) {
	own = sets.Set[string]{}
	for _, process := range l.Living {
		own.Insert(l.Advertised[process.Identity])
	}
	return own, own.HasAny(answering...)
}

// ErrNotReady says that a server which lives shows no address at which it is ready, so that nobody can ask it.
var ErrNotReady = errors.New("is not ready at its address")

// Missing returns the identities of the servers that advertise an address at which nobody answers. It returns none if
// nobody answers at any advertised address: SharesAddresses is about that.
func (l *LivingServers) Missing(answering []string) []string {
	var missing []string
	_, shown := l.advertised(answering)
	for _, process := range l.Living {
		address := l.Advertised[process.Identity]
		if shown && address != "" && !slices.Contains(answering, address) {
			missing = append(missing, process.Identity)
		}
	}
	return missing
}

// AdvertisesAll reports whether each of these addresses is one that a living server advertises. At another one a
// process may answer that is about to end, and has no Lease any more.
func (l *LivingServers) AdvertisesAll(answering []string) bool {
	own, _ := l.advertised(answering)
	return own.HasAll(answering...)
}

// Failed returns the addresses whose documents could not be read.
func (l *Look) Failed() []string {
	var addresses []string
	for address, document := range l.Documents {
		if document.Failure != "" {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// ServesStorageVersions reports whether all servers take part in the StorageVersion API.
func (l *Look) ServesStorageVersions() bool {
	for _, document := range l.Documents {
		if !document.ServesStorageVersions {
			return false
		}
	}
	return len(l.Documents) > 0
}
