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

package observer

import (
	"cmp"
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// identityLabel is on the Leases of all servers that are made of k8s.io/apiserver; kubeAPIServer is its value on those
	// that write built-in resources.
	identityLabel = "apiserver.kubernetes.io/identity"
	kubeAPIServer = "kube-apiserver"

	// The EndpointSlices that servers list their own addresses in.
	endpointsSelector = discoveryv1.LabelServiceName + "=kubernetes"
	endpointsPort     = "https"
)

func (o *Observer) watchLeases(ctx context.Context) {
	p := &processes{leases: map[string]lease{}, seen: map[string]time.Time{}}
	listed := false
	changed := func(unbroken bool, earlier ...[]storageversion.Server) {
		living, others := p.living()
		o.setLiving(ctx, earlier, living, unbroken)
		if !maps.Equal(others, p.others) {
			p.others = others
			o.ReadAggregated()
		}
	}
	from := source{client: o.clients.leases, resource: "leases", namespace: metav1.NamespaceSystem, labels: identityLabel}
	follow(ctx, o.clock, from, handlers[*coordinationv1.Lease]{
		replace: func(all []*coordinationv1.Lease) {
			was, from := p.known(o.clock.Now()), p.revision
			p.revision = p.heard
			p.replace(all, o.clock.Now())
			earlier, unbroken := o.lookBack(ctx, p, listed, was, from)
			changed(unbroken, earlier...)
			listed = true
			o.mu.Lock()
			defer o.mu.Unlock()
			o.done(leasesListed)
		},
		set: func(object *coordinationv1.Lease) {
			p.set(object)
			changed(true)
		},
		delete: func(object *coordinationv1.Lease) {
			p.delete(object, o.clock.Now())
			changed(true)
		},
		revision: func(at int64) { p.heard = at },
		upToDate: func() {
			p.revision = max(p.revision, p.heard)
			p.reached(o.clock.Now())
			changed(true)
		},
	})
}

// lookBack returns which processes lived before those of a list, and whether with them nothing is missing since the list
// or the watch before, of which was is known up to revision from.
func (o *Observer) lookBack(ctx context.Context, p *processes, listed bool, was map[string]lease, from int64) ([][]storageversion.Server, bool) {
	h := &history{client: o.clients.leases}
	living, _ := p.living()
	if !listed {
		return h.before(ctx, living, p.leases, o.clock.Now()), true
	}
	o.mu.Lock()
	told := o.living
	o.mu.Unlock()
	earlier, err := h.between(ctx, told, was, from, p.leases, p.revision)
	klog.FromContext(ctx).V(4).Info("Looked back to before the watch broke", "requests", h.requests, "earlier", earlier, "end", err)
	// A server of an identity that nobody knows may have come and gone: it is worth a look.
	return earlier, err == nil && (len(earlier) > 0 || !slices.Equal(told, living))
}

// setLiving tells the ledger which processes live, and which did one after the other before, if that is news, or if it may
// have been different meanwhile.
func (o *Observer) setLiving(ctx context.Context, earlier [][]storageversion.Server, living []storageversion.Server, unbroken bool) {
	o.mu.Lock()
	renewed := unbroken && len(earlier) == 0 && !o.unlisted.Has(leasesListed) && slices.Equal(o.living, living)
	o.mu.Unlock()
	if renewed {
		return
	}
	klog.FromContext(ctx).V(2).Info("API servers came or went", "earlier", earlier, "living", living, "unbroken", unbroken)
	o.update(func(now time.Time) storageversion.Changes {
		changes := storageversion.Changes{}
		for _, lived := range earlier {
			maps.Copy(changes, o.ledger.SetServers(now, lived, true))
		}
		o.living = living
		maps.Copy(changes, o.ledger.SetServers(now, living, unbroken))
		return changes
	})
	o.lookNow.raise()
}

// processes are those that identity Leases tell of.
type processes struct {
	leases map[string]lease
	// revision is up to which nothing is missing, heard the last that was told of.
	revision, heard int64
	// seen is when servers had a Lease last, of those that have none or may have lost it.
	seen map[string]time.Time
	// horizon is up to when Leases are known. It is the time of what was heard last, and not the time by the clock: who
	// is cut off from the API hears of no renewal, and must not conclude that all servers went.
	horizon time.Time
	// others are the holders of Leases of servers other than kube-apiserver, as they were told last.
	others map[string]string
}

type lease struct {
	claim
	server  bool      // of kube-apiserver
	expires time.Time // never if zero
}

func (p *processes) replace(all []*coordinationv1.Lease, now time.Time) {
	clear(p.leases)
	for _, object := range all {
		p.set(object)
	}
	p.reached(now)
}

func (p *processes) set(object *coordinationv1.Lease) {
	l := lease{claim: claimOf(object), server: object.Labels[identityLabel] == kubeAPIServer}
	p.revision = max(p.revision, l.revision)
	if renewed := object.Spec.RenewTime; renewed != nil {
		p.reached(renewed.Time)
		if seconds := object.Spec.LeaseDurationSeconds; seconds != nil {
			l.expires = renewed.Add(time.Duration(*seconds) * time.Second)
		}
	}
	p.leases[object.Name] = l
}

func (p *processes) delete(object *coordinationv1.Lease, now time.Time) {
	if p.leases[object.Name].server {
		p.seen[object.Name] = now
	}
	delete(p.leases, object.Name)
	p.revision = max(p.revision, revisionOf(object.ResourceVersion))
}

// known returns the Leases that are known, which a list is about to replace, and empty ones for servers that had one not long
// ago: they may have been back meanwhile.
func (p *processes) known(now time.Time) map[string]lease {
	all := map[string]lease{}
	for name, last := range p.seen {
		if now.Sub(last) > historyKept {
			delete(p.seen, name)
			continue
		}
		all[name] = lease{server: true}
	}
	for name, l := range p.leases {
		all[name] = l
		if l.server {
			p.seen[name] = now
		}
	}
	return all
}

func (p *processes) reached(now time.Time) {
	if now.After(p.horizon) {
		p.horizon = now
	}
}

// living returns the processes of kube-apiserver in order, and the holders of the Leases of other servers by name.
func (p *processes) living() (servers []storageversion.Server, others map[string]string) {
	others = map[string]string{}
	for name, l := range p.leases {
		switch {
		case !l.expires.IsZero() && l.expires.Before(p.horizon):
		case l.server:
			servers = append(servers, storageversion.Server{Identity: name, Incarnation: l.holder})
		default:
			others[name] = l.holder
		}
	}
	slices.SortFunc(servers, func(a, b storageversion.Server) int { return cmp.Compare(a.Identity, b.Identity) })
	return servers, others
}

func (o *Observer) watchEndpointSlices(ctx context.Context) {
	bySlice := map[string][]string{}
	changed := func() {
		addresses := slices.Sorted(maps.Keys(union(bySlice)))
		o.mu.Lock()
		news := !slices.Equal(o.addresses, addresses)
		o.addresses = addresses
		o.done(endpointSlicesListed)
		o.mu.Unlock()
		if news {
			klog.FromContext(ctx).V(2).Info("Addresses of API servers changed", "addresses", addresses)
			o.lookNow.raise()
		}
	}
	from := source{client: o.clients.endpointSlices, resource: "endpointslices", namespace: metav1.NamespaceDefault, labels: endpointsSelector}
	follow(ctx, o.clock, from, handlers[*discoveryv1.EndpointSlice]{
		replace: func(all []*discoveryv1.EndpointSlice) {
			clear(bySlice)
			for _, slice := range all {
				bySlice[slice.Name] = addressesIn(slice)
			}
			changed()
		},
		set: func(slice *discoveryv1.EndpointSlice) {
			bySlice[slice.Name] = addressesIn(slice)
			changed()
		},
		delete: func(slice *discoveryv1.EndpointSlice) {
			delete(bySlice, slice.Name)
			changed()
		},
	})
}

// addressesIn returns the addresses of servers that are ready, each with the port.
func addressesIn(slice *discoveryv1.EndpointSlice) []string {
	port, found := int32(0), false
	for _, p := range slice.Ports {
		tcp := ptr.Deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		if p.Port != nil && tcp && (!found || ptr.Deref(p.Name, "") == endpointsPort) {
			port, found = *p.Port, true
		}
	}
	if !found {
		return nil
	}
	var addresses []string
	for _, endpoint := range slice.Endpoints {
		if ptr.Deref(endpoint.Conditions.Ready, true) {
			for _, address := range endpoint.Addresses {
				addresses = append(addresses, net.JoinHostPort(address, strconv.Itoa(int(port))))
			}
		}
	}
	return addresses
}

func union(lists map[string][]string) map[string]struct{} {
	all := map[string]struct{}{}
	for _, list := range lists {
		for _, item := range list {
			all[item] = struct{}{}
		}
	}
	return all
}
