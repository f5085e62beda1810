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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// problemOfProcesses returns why it is not known what the living processes write, or nil.
func (l *looks) problemOfProcesses(now time.Time) *Problem {
	if len(l.servers.living) > 0 && slices.Equal(l.read, l.servers.living) {
		return nil
	}
	if disconnected := l.processes.disconnected(); len(disconnected) > 0 {
		return l.problem("the API server %s may have restarted: its connection to the manager ended. The "+
			"manager reads the server again as soon as the server answers", disconnected[0].Identity)
	}
	if problem := l.problemOfLook(now); problem != nil || len(l.servers.living) == 0 {
		return problem
	}
	// The last look was not complete when it was taken, or it was taken back since.
	return l.problem("the manager reads the API servers (%s) once more, because its last look does not count any more. "+
		"That takes some seconds", l.servers.names())
}

// problemOfLook returns why the last look is not a complete look at the living processes, or nil. It does not ask
// whether a connection has ended: problemOfProcesses does.
func (l *looks) problemOfLook(now time.Time) *Problem {
	if !l.ofLiving() {
		return l.problem("API servers started or stopped (alive: %s), and their discovery documents have not been "+
			"read since. The manager reads them within seconds", l.servers.names())
	}
	for _, address := range l.needed(now) {
		document := l.last.Documents[address]
		if document.Failure != "" {
			return l.problem("the manager could not find out what the API server at %s writes: %s. If a request "+
				"failed, make sure that the manager can send it to this address", address, document.Failure)
		}
	}
	return l.problemOfCount(now)
}

// needed returns the addresses of the last look whose documents a complete look must have. Where an address tells its
// server, the addresses of servers that left a short time ago are not needed. An address that no Lease names is
// needed, because a server without a Lease may run there.
func (l *looks) needed(now time.Time) []string {
	if !l.byAddress {
		return l.addresses
	}
	departed := sets.Set[string]{}
	for identity := range l.servers.lingering(now) {
		departed.Insert(l.lastAdvertised[identity])
	}
	return slices.DeleteFunc(slices.Clone(l.addresses), departed.Has)
}

// problemOfCount returns why a server may live that no address of the last look leads to, or nil.
func (l *looks) problemOfCount(now time.Time) *Problem {
	answering, living, asked := len(l.addresses), len(l.servers.living), strings.Join(l.addresses, ", ")
	absent := slices.IndexFunc(l.servers.living, l.isAbsent)
	switch {
	case absent >= 0:
		identity := l.servers.living[absent].Identity
		return l.problem("the API server %s has a living identity Lease and advertises the address %s, which is not "+
			"in the EndpointSlices of default/kubernetes (%s). If it is gone for good, this ends by itself within minutes",
			identity, l.lastAdvertised[identity], asked)
	case l.last.WhyUnmet != "" && answering < living:
		return l.problem("%d API servers have a living identity Lease (%s), but %s", living, l.servers.names(),
			l.last.WhyUnmet)
	case answering < living:
		return l.problem("%d API servers have a living identity Lease (%s), but the manager knows only these "+
			"addresses: %s. Make every API server advertise an address of its own in the EndpointSlices of "+
			"default/kubernetes, or delete the Leases in kube-system of API servers that are gone for good", living,
			l.servers.names(), asked)
	case len(l.unreadLiving()) > 0 && l.departedMayAnswer(now) && answering < living+len(l.servers.lingering(now)):
		return l.problem("an API server that stopped may still answer at one of the addresses %s, in the place of "+
			"one that lives (%s). This ends by itself within minutes", asked, l.servers.names())
	case living == 0 && len(l.servers.departed) > 0: // Where there never were Leases, one server is assumed.
		return l.problem("no API server has a living identity Lease anymore, so the API servers cannot be counted. " +
			"Make sure that they can renew their Leases in kube-system")
	default:
		return nil
	}
}

// problem returns a problem that began when it was noted.
func (l *looks) problem(format string, args ...any) *Problem {
	return &Problem{
		Reason: migrationv1alpha1.StateReasonServersUnseen, Message: fmt.Sprintf(format, args...),
		Since: cmp.Or(l.problemSince, l.servers.changed),
	}
}
