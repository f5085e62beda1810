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

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	user = "system:svm-controller-manager"
	poll = time.Second
	// restarted is how long a manager is watched that takes over.
	restarted = 2 * time.Minute
	// everything is what the static pod migrates.
	everything = "--auto-migrate=*,-*.admissionregistration.k8s.io"
	// mostRequests is how many kinds of requests are told.
	mostRequests = 8
)

// measure does one phase after the other.
func measure(ctx context.Context, o options) (err error) {
	c, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.cp.Close()) }()
	fmt.Println("| phase | time | requests | CPU | memory at the end, most | server: CPU, memory |")
	fmt.Println("| --- | ---: | ---: | ---: | ---: | ---: |")
	for _, phase := range []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{"definitions and old states are created", c.createDefinitions},
		{"manager observes: a state for each resource", c.observe},
	} {
		if err := c.phase(ctx, phase.name, phase.do); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"status"}, {"plan"}, {"preflight"}, {"rbac"}} {
		if err := c.plugin(ctx, args...); err != nil {
			return err
		}
	}
	if err := c.fill(ctx); err != nil {
		return err
	}
	for _, phase := range []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{fmt.Sprintf("manager migrates %d objects", o.objects), c.migrateOne},
		{fmt.Sprintf("nothing happens for %v", o.idle), c.wait},
		{fmt.Sprintf("another manager takes over: the first %v", restarted), c.restart},
		{fmt.Sprintf("manager migrates %d other resources", o.definitions-1), c.migrateAll},
	} {
		if err := c.phase(ctx, phase.name, phase.do); err != nil {
			return err
		}
	}
	return c.plugin(ctx, "history")
}

// phase prints what a phase needs.
func (c *cluster) phase(ctx context.Context, name string, do func(context.Context) error) error {
	began, before := time.Now(), c.usage(c.manager)
	serverBefore := c.usage(c.cp.Servers()[0].Process())
	manager := c.manager
	c.left = 0
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if c.manager != manager { // It is another process.
		before = controlplane.Usage{}
	}
	took := time.Since(began)
	if c.left > 0 {
		name += fmt.Sprintf("; %d are left when patience ends", c.left)
	}
	requests, err := c.requests(began)
	if err != nil {
		return err
	}
	after, server := c.usage(c.manager), c.usage(c.cp.Servers()[0].Process())
	fmt.Printf("| %s | %v | %d | %v | %s, %s | %v, %s |\n", name, took.Round(100*time.Millisecond), requests.Total(),
		(after.CPU - before.CPU).Round(10*time.Millisecond), megabytes(after.Memory), megabytes(after.PeakMemory),
		(server.CPU - serverBefore.CPU).Round(time.Second), megabytes(server.Memory))
	tell(name, requests)
	return nil
}

// tell says which requests were the most.
func tell(name string, requests controlplane.RequestCounts) {
	kinds := requests.By(func(k controlplane.RequestKind) controlplane.RequestKind {
		return controlplane.RequestKind{Verb: k.Verb, Resource: k.Resource, Subresource: k.Subresource, Code: k.Code}
	})
	keys := slices.SortedFunc(maps.Keys(kinds), func(a, b controlplane.RequestKind) int { return kinds[b] - kinds[a] })
	for _, k := range keys[:min(len(keys), mostRequests)] {
		fmt.Fprintf(os.Stderr, "%s: %d requests %s %s/%s: %d\n", name, kinds[k], k.Verb, k.Resource, k.Subresource, k.Code)
	}
}

func (c *cluster) usage(p *controlplane.Process) controlplane.Usage {
	if p == nil {
		return controlplane.Usage{}
	}
	usage, err := p.Usage()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
	}
	return usage
}

// plugin runs a command of kubectl svm, and prints what it needs.
func (c *cluster) plugin(ctx context.Context, args ...string) error {
	began := time.Now()
	command := exec.CommandContext(ctx, c.binary("kubectl-svm"), append(args, "--kubeconfig="+c.pluginConfig)...)
	out, err := command.Output()
	took := time.Since(began)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 { // It says that something is not safe.
		err = nil
	}
	if err != nil {
		return fmt.Errorf("kubectl svm %v: %w", args, err)
	}
	requests, err := c.requests(began)
	if err != nil {
		return err
	}
	own := requests.Count(func(k controlplane.RequestKind) bool { return k.User == pluginUser })
	usage := command.ProcessState.SysUsage().(*syscall.Rusage)
	processor := command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	fmt.Printf("| kubectl svm %s: %d lines | %v | %d | %v | %s | |\n",
		args[0], lines(out), took.Round(10*time.Millisecond), own,
		processor.Round(10*time.Millisecond), megabytes(usage.Maxrss<<10))
	return nil
}

func lines(out []byte) (n int) {
	for _, b := range out {
		if b == '\n' {
			n++
		}
	}
	return n
}

// observe starts a manager that migrates nothing, and waits until each resource has a state.
func (c *cluster) observe(ctx context.Context) error {
	if err := c.startManager("observer", "--auto-migrate=-*"); err != nil {
		return err
	}
	return c.until(ctx, func(s *v1alpha1.StorageState) bool { return s.Status.Evidence != nil || c.isLeft(s) }, c.want())
}

// migrateOne lets another manager migrate the resource that has objects. It does not give way to other clients, because
// there are none, and the machine may be busy.
func (c *cluster) migrateOne(ctx context.Context) error {
	if err := c.replaceManager("migrator-of-one", "--auto-migrate="+c.full.String(), "--unpaced-rewrites"); err != nil {
		return err
	}
	return c.until(ctx, func(s *v1alpha1.StorageState) bool {
		return s.Name != c.full.String() || isMigrated(s)
	}, c.want())
}

// migrateAll lets another manager migrate the rest.
func (c *cluster) migrateAll(ctx context.Context) error {
	if err := c.replaceManager("migrator-of-all", everything); err != nil {
		return err
	}
	return c.until(ctx, func(s *v1alpha1.StorageState) bool { return !c.isCustom(s) || isMigrated(s) }, c.want())
}

// restart lets another manager confirm what the states say. It leaves states as they are that are true, so nothing
// shows when it is done: the requests and the processor time of the first minutes count.
func (c *cluster) restart(ctx context.Context) error {
	if err := c.replaceManager("migrator-again", "--auto-migrate="+c.full.String()); err != nil {
		return err
	}
	return sleep(ctx, restarted)
}

func (c *cluster) wait(ctx context.Context) error { return sleep(ctx, c.idle) }

func sleep(ctx context.Context, period time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(period):
		return nil
	}
}

func isMigrated(s *v1alpha1.StorageState) bool {
	return meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.StorageStateMigrated)
}

// until waits until there are enough states, and all of them are as wanted. It reads the watch cache, in the name of
// nobody who is counted.
func (c *cluster) until(ctx context.Context, wanted func(*v1alpha1.StorageState) bool, fewest int) error {
	patience := time.Now().Add(c.patience)
	for {
		states, err := c.migration.MigrationV1alpha1().StorageStates().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		left := max(0, fewest-len(states.Items))
		for i := range states.Items {
			if !wanted(&states.Items[i]) {
				left++
			}
		}
		if left == 0 || time.Now().After(patience) {
			c.left = left
			return nil
		}
		fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), left, "states are left")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(poll, time.Duration(len(states.Items))*time.Millisecond)):
		}
	}
}

func (c *cluster) binary(name string) string { return filepath.Join("_output", "bin", name) }

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }

// field reads a line of /proc/<pid>/status, which is in kilobytes.
func field(status []byte, name string) int64 {
	match := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB`).FindSubmatch(status)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(match[1]), 10, 64)
	return n << 10
}
