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
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// healthInterval is short while a server is not ready, because tests wait for it, and readyInterval is long, because
	// many servers that do nothing else would be kept busy with the answers.
	healthInterval = 250 * time.Millisecond
	readyInterval  = 3 * time.Second
	// healthTimeout is generous because a busy server on a small machine is not a dead one.
	healthTimeout = 10 * time.Second
	dialTimeout   = 2 * time.Second
	// readyTries is how often a server that was ready may say that it is not before its connections are closed.
	readyTries = 3
	// shuttingDown is what a server that was asked to end says instead of being ready.
	shuttingDown = "[-]shutdown failed"
)

// Balancer is a TCP load balancer in front of API servers: connections go round, to servers that say that they are
// ready. When one no longer is, and another one is, its connections are closed, as most load balancers do, so that
// clients move on.
type Balancer struct {
	cp       *ControlPlane
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu       sync.Mutex
	backends []*APIServer // nil: all of the control plane
	next     int
	healthy  sets.Set[*APIServer]
	conns    map[*proxied]bool
}

// proxied is one connection and its continuation to a server.
type proxied struct {
	backend        *APIServer
	client, server net.Conn
}

func (p *proxied) close() {
	closeAll(p.client, p.server)
}

func newBalancer(cp *ControlPlane, listener net.Listener) *Balancer {
	b := &Balancer{cp: cp, listener: listener, healthy: sets.New[*APIServer](), conns: map[*proxied]bool{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.running.Go(b.accept)
	b.running.Go(b.checkAll)
	return b
}

// Address is where clients connect to.
func (b *Balancer) Address() string { return b.listener.Addr().String() }

// SetBackends restricts the balancer to servers; none means all that the control plane has, now and later. Connections
// to others are closed.
func (b *Balancer) SetBackends(servers ...*APIServer) {
	b.mu.Lock()
	b.backends = slices.Clone(servers)
	b.mu.Unlock()
	b.closeWhere(func(s *APIServer) bool { return len(servers) > 0 && !slices.Contains(servers, s) })
}

func (b *Balancer) close() error {
	b.cancel()
	err := b.listener.Close()
	b.closeWhere(func(*APIServer) bool { return true })
	b.running.Wait()
	if err != nil {
		return fmt.Errorf("closing a balancer: %w", err)
	}
	return nil
}

func (b *Balancer) closeWhere(condition func(*APIServer) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.conns {
		if condition(p.backend) {
			p.close()
		}
	}
}

func (b *Balancer) accept() {
	for {
		client, err := b.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, or the client gave up: neither ends the balancer.
			select {
			case <-b.ctx.Done():
				return
			case <-time.After(healthInterval):
				continue
			}
		}
		b.running.Go(func() { b.serve(client) })
	}
}

func (b *Balancer) serve(client net.Conn) {
	p := b.connect(client)
	if p == nil {
		closeAll(client)
		return
	}
	var copies sync.WaitGroup
	copies.Go(func() { pass(p.server, p.client) })
	copies.Go(func() { pass(p.client, p.server) })
	copies.Wait()
	p.close()
	b.mu.Lock()
	delete(b.conns, p)
	b.mu.Unlock()
}

// pass copies until either side ends, and then ends both: what speaks TLS has nothing to say on half of a connection.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from) // how a connection ended is between its ends
	closeAll(to, from)
}

// closeAll ends connections that may have ended already.
func closeAll(conns ...net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// connect finds a server for a client: the next one that is ready, or else any that answers.
func (b *Balancer) connect(client net.Conn) *proxied {
	for _, backend := range b.candidates() {
		ctx, cancel := context.WithTimeout(b.ctx, dialTimeout)
		server, err := (&net.Dialer{}).DialContext(ctx, "tcp", backend.endpoint())
		cancel()
		if err != nil {
			continue
		}
		p := &proxied{backend: backend, client: client, server: server}
		b.mu.Lock()
		b.conns[p] = true
		unwanted := b.ctx.Err() != nil || len(b.backends) > 0 && !slices.Contains(b.backends, backend)
		b.mu.Unlock()
		if unwanted { // close, or SetBackends, looked at conns before this one was among them
			p.close()
		}
		return p
	}
	return nil
}

// candidates are the servers in the order in which to try them.
func (b *Balancer) candidates() []*APIServer {
	all := b.servers()
	b.mu.Lock()
	defer b.mu.Unlock()
	var ready, others []*APIServer
	for i := range all {
		s := all[(b.next+i)%len(all)]
		if b.healthy.Has(s) {
			ready = append(ready, s)
		} else {
			others = append(others, s)
		}
	}
	b.next++
	return append(ready, others...)
}

func (b *Balancer) servers() []*APIServer {
	b.mu.Lock()
	backends := b.backends
	b.mu.Unlock()
	if len(backends) > 0 {
		return backends
	}
	return b.cp.Servers()
}

// checkAll keeps healthy up to date, every server at its own pace so that a silent one does not hold up the others.
func (b *Balancer) checkAll() {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	checking := sets.New[*APIServer]()
	results := make(chan *APIServer)
	for {
		for _, s := range b.cp.Servers() {
			if checking.Has(s) {
				continue
			}
			checking.Insert(s)
			b.running.Go(func() {
				if b.check(s) {
					select {
					case <-time.After(readyInterval):
					case <-b.ctx.Done():
					}
				}
				select {
				case results <- s:
				case <-b.ctx.Done():
				}
			})
		}
		for waiting := true; waiting; {
			select {
			case s := <-results:
				checking.Delete(s)
			case <-ticker.C:
				waiting = false
			case <-b.ctx.Done():
				return
			}
		}
	}
}

// check finds out whether a server is ready. A server that was ready is asked again if it says that it is not: on a
// busy machine etcd may not have answered it in time. If no other one is ready either, it still counts as ready, unless
// it shuts down: etcd stands still for all of them, and clients have nowhere to move on to.
func (b *Balancer) check(s *APIServer) (ready bool) {
	b.mu.Lock()
	was, others := b.healthy.Has(s), b.healthy.Clone().Delete(s)
	b.mu.Unlock()
	err := b.ask(s)
	for tries := 1; was && tries < readyTries && errors.Is(err, errNotReady); tries++ {
		if tries == readyTries-1 && !strings.Contains(err.Error(), shuttingDown) && !b.anyReady(others) {
			return false
		}
		err = b.ask(s)
	}
	b.mu.Lock()
	if err == nil {
		b.healthy.Insert(s)
	} else {
		b.healthy.Delete(s)
	}
	b.mu.Unlock()
	if was && err != nil && b.ctx.Err() == nil {
		b.closeWhere(func(backend *APIServer) bool { return backend == s })
	}
	return err == nil
}

// anyReady asks those of the servers that clients are led to.
func (b *Balancer) anyReady(servers sets.Set[*APIServer]) bool {
	return slices.ContainsFunc(b.servers(), func(s *APIServer) bool { return servers.Has(s) && b.ask(s) == nil })
}

func (b *Balancer) ask(s *APIServer) error {
	ctx, cancel := context.WithTimeout(b.ctx, healthTimeout)
	defer cancel()
	return s.checkReady(ctx)
}
