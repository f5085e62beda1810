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
	"maps"
	"slices"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// meet makes connections to the balancer until it has met as many processes as live. Later each must still answer.
func (o *observer) meet(look storageversion.Look) {
	w := o.m.w
	w.after(w.dice.upTo(answerDelay), func() {
		met := o.connect(len(look.Living))
		w.after(w.dice.upTo(answerDelay), func() {
			if len(met) == 0 {
				look.Documents[balancer] = storageversion.Document{Failure: "connection refused"}
			}
			from := map[string]*server{}
			for name, s := range met {
				if s.lives {
					look.Documents[balancer+" "+name], from[balancer+" "+name] = w.cluster.documentOf(s), s
				}
			}
			if len(look.Documents) < len(look.Living) {
				look.WhyUnmet = "the API servers share the balancer"
			}
			if w.manager == o.m {
				o.conclude(look, from)
			}
		})
	})
}

// connect makes connections to the balancer until it has met so many processes.
func (o *observer) connect(wanted int) map[string]*server {
	w, met := o.m.w, map[string]*server{}
	for i := 0; i < connectionsPerServer*wanted && len(met) < wanted; i++ {
		if s := w.cluster.connect(); s != nil {
			met[w.mutant.nameOf(s, i)] = s
		}
	}
	return met
}

// keepConnections keeps connections to the processes that answered, where others may take over their Leases.
func (o *observer) keepConnections(look storageversion.Look, from map[string]*server) {
	for name, document := range look.Documents {
		if s := from[name]; s != nil && document.Failure == "" && storageversion.LeaseMayOutliveProcess(document.Version) {
			document.Connected = true
			look.Documents[name], o.held[name] = document, s
			o.known[s.source] = true
		}
	}
}

// disconnected tells the ledger of connections that ended.
func (o *observer) disconnected(s *server) {
	if o.m.w.manager != o.m {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(o.held)) {
		if o.held[name] == s {
			delete(o.held, name)
			o.m.w.log("the connection to %s ended", s.incarnation)
			o.heard(o.ledger.ConnectionLost(o.m.now(), name))
			o.lookSoon()
		}
	}
}
