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
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// Every control plane of this process has a subnet of its own inside the process's namespace, where no other address
	// lives: a /24, or a /64 of IPv6.
	formatIPv4 = "10.77.%d.%%d/24"
	formatIPv6 = "fd77:%d::%%d/64"
	maxSubnets = 250
	maxHosts   = 253
	hostLink   = "eth0"
	// gatewayNumber is that of this process in the subnet. Hosts have the numbers after it.
	gatewayNumber = 1
)

var subnets atomic.Int32

// bridgeNetwork is a switch in this process's network namespace with a wire to every host.
type bridgeNetwork struct {
	format string // of addresses with their prefix length
	bridge *netlink.Bridge
	here   *Host

	mu    sync.Mutex
	hosts []*Host
}

func newBridgeNetwork(ipv6 bool) (*bridgeNetwork, error) {
	if err := entered(); err != nil {
		return nil, err
	}
	index := subnets.Add(1)
	if index > maxSubnets {
		return nil, fmt.Errorf("this process made %d control planes with hosts, there are no addresses for more", maxSubnets)
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the host name: %w", err)
	}
	format := formatIPv4
	if ipv6 {
		format = formatIPv6
	}
	n := &bridgeNetwork{format: fmt.Sprintf(format, index)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("cp%d", index)
	n.bridge = &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(n.bridge); err != nil {
		return nil, fmt.Errorf("adding a bridge: %w", err)
	}
	if err := setUp(n.bridge, n.prefix(gatewayNumber)); err != nil {
		return nil, errors.Join(err, netlink.LinkDel(n.bridge))
	}
	n.here = &Host{name: name, address: n.gateway(), thread: newThread(), netns: -1, link: attrs.Name}
	return n, nil
}

func (n *bridgeNetwork) home() *Host { return n.here }

// prefix returns an address with the length of the prefix of the subnet.
func (n *bridgeNetwork) prefix(number int) string { return fmt.Sprintf(n.format, number) }

func (n *bridgeNetwork) address(number int) string {
	address, _, _ := strings.Cut(n.prefix(number), "/")
	return address
}

func (n *bridgeNetwork) gateway() string { return n.address(gatewayNumber) }

func (n *bridgeNetwork) add(name string) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	number := len(n.hosts) + gatewayNumber + 1
	if number > maxHosts {
		return nil, fmt.Errorf("adding host %s: there are %d already", name, len(n.hosts))
	}
	h := &Host{name: name, address: n.address(number), thread: newThread(), netns: -1, link: hostLink}
	n.hosts = append(n.hosts, h)
	if err := n.connect(h, number); err != nil {
		return nil, fmt.Errorf("adding host %s: %w", name, err)
	}
	return h, nil
}

// connect gives h its namespaces and a wire.
func (n *bridgeNetwork) connect(h *Host, number int) error {
	link := fmt.Sprintf("%sh%d", n.bridge.Name, number) // its end here
	if err := h.thread.do(h.unshare); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	attrs.MasterIndex = n.bridge.Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName = hostLink
	veth.PeerNamespace = netlink.NsFd(h.netns)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("adding a veth pair: %w", err)
	}
	h.wire = func(connected bool) error { return plugLink(link, connected) }
	if err := h.wire(true); err != nil {
		return err
	}
	return h.thread.do(func() error { return h.configure(n.prefix(number), n.gateway()) })
}

// unshare moves the thread of h, on which it runs, to a network and a host name of its own.
func (h *Host) unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("unsharing namespaces: %w", err)
	}
	if err := unix.Sethostname([]byte(h.name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	fd, err := openThreadNetwork()
	if err != nil {
		return err
	}
	h.netns = fd
	return nil
}

// configure runs on the thread of h.
func (h *Host) configure(prefix, gateway string) error {
	if err := setLoopbackUp(); err != nil {
		return err
	}
	link, err := netlink.LinkByName(hostLink)
	if err != nil {
		return fmt.Errorf("looking for %s: %w", hostLink, err)
	}
	if err := setUp(link, prefix); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("adding the default route: %w", err)
	}
	return nil
}

func (n *bridgeNetwork) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, h := range n.hosts {
		h.thread.end()
		if h.netns >= 0 {
			errs = append(errs, unix.Close(h.netns))
		}
	}
	n.hosts = nil
	n.here.thread.end()
	// The wires go with the namespaces at their other ends, some time after the last process and socket there.
	if err := netlink.LinkDel(n.bridge); err != nil {
		errs = append(errs, fmt.Errorf("removing the bridge: %w", err))
	}
	return errors.Join(errs...)
}

func setLoopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for the loopback link: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting the loopback link up: %w", err)
	}
	return nil
}

func setUp(link netlink.Link, prefix string) error {
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return fmt.Errorf("parsing address %s: %w", prefix, err)
	}
	addr.Flags = unix.IFA_F_NODAD // Nobody else has it, and whether that is so takes IPv6 a second.
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding address %s: %w", prefix, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting link %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

func plugLink(name string, connected bool) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking for the wire %s: %w", name, err)
	}
	set := netlink.LinkSetDown
	if connected {
		set = netlink.LinkSetUp
	}
	if err := set(link); err != nil {
		return fmt.Errorf("plugging the wire %s (connected=%t): %w", name, connected, err)
	}
	return nil
}

// nowhere is an Ethernet address that nobody has.
var nowhere = net.HardwareAddr{0x02, 0, 0, 0, 0, 0}

// plugNeighbour makes h send what is for other to nowhere, or find it again.
func plugNeighbour(h, other *Host, connected bool) error {
	plug := func() error {
		link, err := netlink.LinkByName(h.link)
		if err != nil {
			return fmt.Errorf("looking for %s of %s: %w", h.link, h.name, err)
		}
		neighbour := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(other.address), HardwareAddr: nowhere,
		}
		if !connected {
			err = netlink.NeighSet(neighbour)
		} else if err = netlink.NeighDel(neighbour); errors.Is(err, unix.ENOENT) { // it was not cut
			err = nil
		}
		if err != nil {
			return fmt.Errorf("plugging %s to %s (connected=%t): %w", h.name, other.name, connected, err)
		}
		return nil
	}
	if h.netns < 0 {
		return plug()
	}
	return inNetwork(h, plug)
}

func openThreadNetwork() (int, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening the thread's network namespace: %w", err)
	}
	return fd, nil
}

// inNetwork runs f on a thread that is in the network namespace of h meanwhile. A socket stays in the namespace that it
// was made in.
func inNetwork(h *Host, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := openThreadNetwork()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer unix.Close(home)
		if err := unix.Setns(h.netns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("entering the network of %s: %w", h.name, err)
			return
		}
		err = f()
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread must end with the goroutine
		}
		done <- err
	}()
	return <-done
}

func dialFromHost(ctx context.Context, h *Host, network, address string) (conn net.Conn, err error) {
	err = inNetwork(h, func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

func listenOnHost(h *Host, network, address string) (listener net.Listener, err error) {
	err = inNetwork(h, func() error {
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), network, address)
		return err
	})
	return listener, err
}
