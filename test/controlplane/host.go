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
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

// ErrNoHosts says that hosts with networks of their own cannot be had here. The message says why, and what to do.
var ErrNoHosts = errors.New("no hosts of their own for the servers")

// Host is a place where processes run. In a control plane with hosts each has its own network, address and host name,
// and is wired to a switch that the others and this process are wired to as well. Without, there is one host: this
// machine.
type Host struct {
	name    string
	address string
	thread  *thread
	// netns is the file descriptor of the network namespace, negative on this machine itself.
	netns int
	// wire connects and disconnects the host; nil on this machine itself.
	wire func(connected bool) error
	// link is the network interface towards the other hosts; empty if there are none.
	link string
}

// network gives out hosts.
type network interface {
	// add makes a host. Numbers, hence addresses, are given in the order of calls.
	add(name string) (*Host, error)
	// home is where this process is.
	home() *Host
	// gateway is the address at which hosts reach this process.
	gateway() string
	close() error
}

// Name is the host name.
func (h *Host) Name() string { return h.name }

// Address is the IP address.
func (h *Host) Address() string { return h.address }

// Cut unplugs the host. Packets both ways are lost without an answer, connections stay open and silent.
func (h *Host) Cut() error { return h.plug(false) }

// Heal plugs the host in again.
func (h *Host) Heal() error { return h.plug(true) }

func (h *Host) plug(connected bool) error {
	if h.wire == nil {
		return fmt.Errorf("host %s shares the network of this machine: %w", h.name, ErrNoHosts)
	}
	return h.wire(connected)
}

// CutFrom loses all packets between the host and another one without an answer, as Cut does. Everybody else still
// reaches both.
func (h *Host) CutFrom(other *Host) error { return h.plugTo(other, false) }

// HealFrom lets the host and another one reach each other again.
func (h *Host) HealFrom(other *Host) error { return h.plugTo(other, true) }

func (h *Host) plugTo(other *Host, connected bool) error {
	if h.link == "" || other.link == "" {
		return fmt.Errorf("hosts %s and %s share the network of this machine: %w", h.name, other.name, ErrNoHosts)
	}
	return errors.Join(plugNeighbour(h, other, connected), plugNeighbour(other, h, connected))
}

// DialContext connects from the host, to an IP address and port.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if h.netns < 0 {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return dialFromHost(ctx, h, network, address)
}

// Listen listens on the host, at an IP address and port.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	if h.netns < 0 {
		return net.Listen(network, address)
	}
	return listenOnHost(h, network, address)
}

// givenPorts are the addresses that freePort and FreePort gave out: whoever got one may not listen on it yet, or at the
// moment.
var givenPorts sync.Map

// freePort finds a port that nothing listens on and nobody was given before.
func (h *Host) freePort() (int, error) {
	for {
		listener, err := h.Listen("tcp", net.JoinHostPort(h.address, "0"))
		if err != nil {
			return 0, fmt.Errorf("looking for a free port on %s: %w", h.name, err)
		}
		address := listener.Addr().(*net.TCPAddr)
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("looking for a free port on %s: %w", h.name, err)
		}
		if _, given := givenPorts.LoadOrStore(address.String(), true); !given {
			return address.Port, nil
		}
	}
}

// FreePort finds a port of this machine, at 127.0.0.1, that nothing listens on and nobody was given before. It is below
// the ports that clients get, so that no client has it before the caller listens.
func FreePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		_ = listener.Close()
		if _, given := givenPorts.LoadOrStore(address, true); !given {
			return port, nil
		}
	}
	return 0, errors.New("there is no free port")
}

// loopback is the network of a control plane without hosts: this machine is its only host.
type loopback struct{ host *Host }

// newLoopback takes an address of 127.0.0.0/8 that depends on the process id. Nothing else listens on it, and no client
// ever has a port of it, so a server that was killed finds its port free when it comes back.
func newLoopback() (*loopback, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the host name: %w", err)
	}
	pid := os.Getpid()
	address := net.IPv4(127, byte(1+pid>>16%250), byte(pid>>8), byte(pid)).String()
	return &loopback{host: &Host{name: name, address: address, thread: newThread(), netns: -1}}, nil
}

func (l *loopback) add(string) (*Host, error) { return l.host, nil }
func (l *loopback) home() *Host               { return l.host }
func (l *loopback) gateway() string           { return l.host.address }

func (l *loopback) close() error {
	l.host.thread.end()
	return nil
}
