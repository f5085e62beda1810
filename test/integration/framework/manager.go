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

package framework

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// logTail is how many lines of a manager's log a failed test shows.
const logTail = 150

// QuickElection makes leases change hands within a time that a test can wait. A leader keeps its lease while a busy
// machine lets it wait for less than the renew deadline.
var QuickElection = []string{
	"--leader-elect=true",
	"--leader-elect-lease-duration=20s", "--leader-elect-renew-deadline=16s", "--leader-elect-retry-period=2s",
}

// PatientElection is for tests in which no lease expires: however busy the machine is, the leader keeps its lease.
var PatientElection = []string{
	"--leader-elect=true",
	"--leader-elect-lease-duration=180s", "--leader-elect-renew-deadline=150s", "--leader-elect-retry-period=3s",
}

// collectLate keeps managers, whose heaps are small, from collecting garbage many times a second. Not later than that:
// with the race detector each byte of the heap takes several.
var collectLate = []string{"GOGC=400"}

// misbehaviour is what must never be in a log.
var misbehaviour = regexp.MustCompile(
	`(?m)^.*(DATA RACE|panic:|Observed a panic|` +
		`must contain currentStorageVersionHash|an entry leaves persisted|epoch never goes down).*$`,
)

// Process is a manager to be started.
type Process struct {
	Name string
	// Program is Manager if empty.
	Program string
	// Config is where it is to talk to, and as whom.
	Config *rest.Config
	// Host is where it runs; the host of the test if empty.
	Host string
	Args []string
}

// StartManager starts a manager. When the test ends its log must not tell of what must never happen.
func StartManager(t *testing.T, cp *controlplane.ControlPlane, p Process) (process *controlplane.Process, port int) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), p.Name+".kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, p.Config); err != nil {
		t.Fatal(err)
	}
	port = freePort(t)
	p.Args = append(
		[]string{"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port)},
		p.Args...)
	process, err := StartAsGiven(t, cp, p)
	if err != nil {
		t.Fatal(err)
	}
	return process, port
}

// StartAsGiven starts a manager with these arguments and no others, so Config does not matter. Its log is judged as
// StartManager says.
func StartAsGiven(t *testing.T, cp *controlplane.ControlPlane, p Process) (*controlplane.Process, error) {
	t.Helper()
	binary := Binary(cmp.Or(p.Program, Manager))
	process, err := cp.StartProcess(
		controlplane.Program{Name: p.Name, Path: binary, Args: p.Args, Env: collectLate, Host: p.Host},
	)
	if err == nil {
		t.Cleanup(func() { checkLog(t, process) })
	}
	return process, err
}

func checkLog(t *testing.T, process *controlplane.Process) {
	log := process.Log()
	if found := misbehaviour.FindAllString(log, 3); len(found) > 0 {
		t.Errorf("the log of %s has:\n%s", process.Name(), strings.Join(found, "\n"))
	}
	if t.Failed() {
		lines := strings.Split(strings.TrimSpace(log), "\n")
		// What is printed comes before what tests say, so that a reader of the end of the output sees the errors.
		fmt.Printf("the end of the log of %s in %s:\n%s\n", process.Name(), t.Name(),
			strings.Join(lines[max(0, len(lines)-logTail):], "\n"))
	}
}

// StopManager asks the manager to end and wants it to end well.
func StopManager(t *testing.T, process *controlplane.Process) {
	t.Helper()
	if err := process.Stop(); err != nil {
		t.Errorf("stopping %s: %v", process.Name(), err)
	}
	if err := process.Wait(); err != nil {
		t.Errorf("%s was asked to end and ended with %v", process.Name(), err)
	}
}

// AwaitRead waits until the log of a manager, which runs with -v=4, tells that it has read what each server writes.
func AwaitRead(
	t *testing.T, within time.Duration, manager *controlplane.Process, servers ...*controlplane.APIServer,
) {
	t.Helper()
	Eventually(t, within, func(context.Context) error {
		log := manager.Log()
		for _, server := range servers {
			address := regexp.QuoteMeta(strings.TrimPrefix(server.URL(), "https://"))
			read := regexp.MustCompile("Read the discovery documents of an API server.* address=\"" + address +
				"\".* failure=\"\" ")
			if !read.MatchString(log) {
				return fmt.Errorf("%s has not read from %s", manager.Name(), server.URL())
			}
		}
		return nil
	})
}

// WhilePaused does what is to be done before the process goes on, however long that takes.
func WhilePaused(t *testing.T, process *controlplane.Process, do func()) {
	t.Helper()
	if err := process.Pause(); err != nil {
		t.Fatal(err)
	}
	do()
	if err := process.Resume(); err != nil {
		t.Fatal(err)
	}
}

// FreeAddress is an address and a port of this host that nothing listens on.
func FreeAddress(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := controlplane.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
