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
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// insideEnv tells the second run of the program that it is the second; its value is the number of listeners passed to
	// it.
	insideEnv = "SVM_CONTROLPLANE_INSIDE"
	// statusFD is where the second run reports why it cannot go on; listeners follow it.
	statusFD = 3
	// outsideListeners is how many ports of 127.0.0.1 are kept for those outside, to reach balancers inside.
	outsideListeners = 8

	namespaceAdvice = "hosts need Linux network namespaces: run as root, or allow unprivileged user namespaces " +
		"(sysctl user.max_user_namespaces > 0, kernel.unprivileged_userns_clone=1, " +
		"kernel.apparmor_restrict_unprivileged_userns=0), " +
		"with the kernel modules bridge and veth; in a container, give it --privileged"
)

// inside is what this process knows about its namespaces.
var inside struct {
	sync.Mutex
	tried     bool
	err       error // why there are none
	listeners []net.Listener
}

// entered is nil inside of namespaces, else it says why this process is outside.
func entered() error {
	inside.Lock()
	defer inside.Unlock()
	if !inside.tried {
		return fmt.Errorf(
			"%w: call controlplane.Main from TestMain, or controlplane.EnterNamespaces from main, first", ErrNoHosts,
		)
	}
	return inside.err
}

func enterNamespaces() error {
	inside.Lock()
	defer inside.Unlock()
	if inside.tried {
		return inside.err
	}
	inside.tried = true
	if count, ok := os.LookupEnv(insideEnv); ok {
		arrive(count)
		return nil
	}
	inside.err = leave()
	return inside.err
}

// takeOutsideListener gives one of the listeners that those outside can reach.
func takeOutsideListener() (net.Listener, error) {
	inside.Lock()
	defer inside.Unlock()
	if len(inside.listeners) == 0 {
		return nil, fmt.Errorf("all %d ports for those outside of the namespaces are in use", outsideListeners)
	}
	l := inside.listeners[0]
	inside.listeners = inside.listeners[1:]
	return l, nil
}

// arrive is the start of the second run. If something is missing it tells the first run and ends the process.
func arrive(count string) {
	// Children of this process must not take themselves for a second run, nor keep the descriptors.
	err := os.Unsetenv(insideEnv)
	status := os.NewFile(statusFD, "status")
	syscall.CloseOnExec(statusFD)
	if err == nil {
		err = takeListeners(count)
	}
	if err == nil {
		err = tryNetwork()
	}
	if err != nil {
		fmt.Fprint(status, err)
		os.Exit(1)
	}
	_ = status.Close() // which is the message that all is well
}

func takeListeners(count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("reading %s: %w", insideEnv, err)
	}
	for i := range n {
		file := os.NewFile(uintptr(statusFD+1+i), "listener")
		listener, err := net.FileListener(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("taking over listener %d: %w", i, err)
		}
		inside.listeners = append(inside.listeners, listener)
	}
	return nil
}

// tryNetwork sets up the loopback link and tries everything that hosts will need: namespaces may be allowed and
// useless.
func tryNetwork() error {
	if err := setLoopbackUp(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "try"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("adding a bridge: %w", err)
	}
	t := newThread()
	defer t.end()
	h := &Host{name: "try", thread: t, netns: -1}
	if err := t.do(h.unshare); err != nil {
		return err
	}
	defer unix.Close(h.netns)
	attrs.Name = "try0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "try1", netlink.NsFd(h.netns)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("adding a veth pair: %w", err)
	}
	return errors.Join(netlink.LinkDel(veth), netlink.LinkDel(bridge))
}

// leave starts the second run. It returns only if there cannot be one.
func leave() error {
	// The death of this thread would kill the second run.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	listeners, err := outsideFiles()
	defer func() {
		for _, f := range listeners {
			_ = f.Close() // nothing is lost with it
		}
	}()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoHosts, err)
	}
	var reasons []error
	for _, userNamespace := range []bool{false, true} {
		if !userNamespace && os.Geteuid() != 0 {
			continue
		}
		reason := secondRun(listeners, userNamespace)
		reasons = append(
			reasons, fmt.Errorf("(as root: %t, in a user namespace: %t) %w", os.Geteuid() == 0, userNamespace, reason),
		)
	}
	return fmt.Errorf("%w: %w; %s", ErrNoHosts, errors.Join(reasons...), namespaceAdvice)
}

func outsideFiles() ([]*os.File, error) {
	var files []*os.File
	for range outsideListeners {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return files, fmt.Errorf("listening for those outside: %w", err)
		}
		file, err := l.(*net.TCPListener).File()
		if err := errors.Join(err, l.Close()); err != nil { // file is a duplicate
			return files, fmt.Errorf("listening for those outside: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

// secondRun exits with the code of the second run, or returns why that could not start.
func secondRun(listeners []*os.File, userNamespace bool) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"="+strconv.Itoa(len(listeners)))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = append([]*os.File{w}, listeners...)
	cmd.SysProcAttr = childAttributes()
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS
	if userNamespace {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(
		signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	)
	defer close(signals)
	defer signal.Stop(signals)
	err = cmd.Start()
	// The second run has its own, and reading ends when it is closed there.
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may be gone, which Wait finds out
		}
	}()
	reason, err := io.ReadAll(r)
	waited := cmd.Wait()
	if err != nil {
		return fmt.Errorf("reading from the second run: %w", err)
	}
	if len(reason) > 0 {
		return errors.New(strings.TrimSpace(string(reason)))
	}
	if waited != nil && cmd.ProcessState == nil {
		return waited
	}
	os.Exit(exitStatus(cmd.ProcessState))
	return nil
}

// exitStatus is what a shell would call the end of a process.
func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
