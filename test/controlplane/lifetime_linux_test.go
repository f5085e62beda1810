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
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	victimEnv    = "SVM_CONTROLPLANE_VICTIM"
	victimBinEnv = "SVM_CONTROLPLANE_VICTIM_BIN"

	// These are control planes.
	onHosts    = "hosts"
	unprepared = "unprepared"
	// These have programs that do nothing.
	inNamespaces = "namespaces"
	withoutHosts = "loopback"
	panicking    = "panicking"

	nobody = 65534
)

// victimReport is what a victim tells about itself.
type victimReport struct {
	Error   string
	NoHosts bool
	Pids    []int
	Dir     string
}

// beVictim makes this process one that starts others, reports, and waits for its end.
func beVictim(shape string) {
	report := victimReport{Pids: []int{os.Getpid()}}
	var err error
	if shape == onHosts || shape == inNamespaces {
		err = EnterNamespaces()
	}
	if err == nil {
		if shape == onHosts || shape == unprepared {
			err = report.startControlPlane(Config{
				BinDir: os.Getenv(victimBinEnv), Hosts: true, Servers: []Server{{AllowAll: true}}, Environment: CollectLate,
			})
		} else {
			err = report.startSleepers()
		}
	}
	if err != nil {
		report.Error, report.NoHosts = err.Error(), errors.Is(err, ErrNoHosts)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		panic(err)
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until the test says that it has read that
		panic(err)
	}
	if shape == panicking {
		go func() { panic("as expected by the test") }()
	}
	select {}
}

func (r *victimReport) startControlPlane(cfg Config) error {
	cp, err := New(context.Background(), cfg)
	if err != nil {
		return err
	}
	r.Dir = cp.Dir()
	r.Pids = append(r.Pids, cp.Etcd().Process().Pid(), cp.Servers()[0].Process().Pid())
	return nil
}

// startSleepers starts programs as a control plane starts etcd and API servers.
func (r *victimReport) startSleepers() (err error) {
	if r.Dir, err = os.MkdirTemp("", "svm-controlplane-"); err != nil {
		return err
	}
	h := &Host{name: "here", thread: newThread(), netns: -1}
	for range 2 {
		p, err := startProcess(h, Program{Name: "sleep", Path: "/bin/sleep", Args: []string{"600"}},
			filepath.Join(r.Dir, "log"))
		if err != nil {
			return err
		}
		r.Pids = append(r.Pids, p.Pid())
	}
	return nil
}

type victim struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	report victimReport
}

func startVictim(t *testing.T, shape string, attributes *syscall.SysProcAttr, env ...string) *victim {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(append(os.Environ(), victimEnv+"="+shape), env...)
	cmd.Stderr = io.Discard
	cmd.SysProcAttr = attributes
	cmd.Dir = os.TempDir()
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	v := &victim{cmd: cmd, stdin: stdin}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it is meant to be dead
		_ = cmd.Wait()         // it was killed
		if v.report.Dir != "" {
			must(t, os.RemoveAll(v.report.Dir))
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	must(t, err)
	must(t, json.Unmarshal(line, &v.report))
	return v
}

// gone returns nil when there is no such process, or only what its parent has not yet collected.
func gone(pid int) error {
	state, err := processState(pid)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || state == 'Z' {
		return nil
	}
	return errors.Join(fmt.Errorf("process %d is in state %c", pid, state), err)
}

func killProcess(t *testing.T, v *victim) { must(t, v.cmd.Process.Kill()) }

func TestNothingOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, shape string
		end         func(t *testing.T, v *victim)
	}{
		{"kill -9 of the run inside of the namespaces", inNamespaces, func(t *testing.T, v *victim) {
			must(t, syscall.Kill(v.report.Pids[0], syscall.SIGKILL))
		}},
		{"an interrupt that nobody handles", inNamespaces, func(t *testing.T, v *victim) {
			must(t, v.cmd.Process.Signal(os.Interrupt))
		}},
		{"kill -9 of a process without hosts", withoutHosts, killProcess},
		{"a panic", panicking, func(t *testing.T, v *victim) { must(t, v.stdin.Close()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := startVictim(t, tc.shape, nil)
			if v.report.Error != "" {
				t.Fatal(v.report.Error)
			}
			nothingOutlives(t, v, tc.end)
		})
	}
}

// nothingOutlives ends a victim and waits for the end of all that it started.
func nothingOutlives(t *testing.T, v *victim, end func(t *testing.T, v *victim)) {
	t.Helper()
	for _, pid := range v.report.Pids {
		if err := gone(pid); err == nil {
			t.Fatalf("process %d was gone before its time", pid)
		}
	}
	end(t, v)
	eventually(t, "every process is gone", func(context.Context) error {
		var errs []error
		for _, pid := range v.report.Pids {
			errs = append(errs, gone(pid))
		}
		return errors.Join(errs...)
	})
}

func TestHostsWithoutPreparationAreRefusedWithAdvice(t *testing.T) {
	t.Parallel()
	v := startVictim(t, unprepared, nil)
	if !v.report.NoHosts || !strings.Contains(v.report.Error, "controlplane.Main") {
		t.Errorf("the error is %q", v.report.Error)
	}
}

// TestAnybodyMayHaveHosts runs a control plane on hosts as a user who is not root, and kills its process.
func TestAnybodyMayHaveHosts(t *testing.T) {
	t.Parallel()
	var attributes *syscall.SysProcAttr
	var env []string
	if isRealRoot(t) {
		attributes = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		env = append(env, victimBinEnv+"="+binariesForAnybody(t))
	}
	v := startVictim(t, onHosts, attributes, env...)
	switch {
	case !userNamespacesAllowed(t):
		if !v.report.NoHosts || !strings.Contains(v.report.Error, "run as root, or allow unprivileged user namespaces") {
			t.Errorf("this system allows no user namespaces, and the error is %q", v.report.Error)
		}
	case v.report.Error != "":
		t.Error(v.report.Error)
	default:
		nothingOutlives(t, v, killProcess)
	}
}

// isRealRoot tells whether this process is root of the machine, or only of a user namespace that a user made.
func isRealRoot(t *testing.T) bool {
	t.Helper()
	mapping, err := os.ReadFile("/proc/self/uid_map")
	must(t, err)
	fields := strings.Fields(string(mapping))
	return os.Geteuid() == 0 && len(fields) == 3 && fields[2] != "1"
}

// binariesForAnybody copies the servers to where every user can run them.
func binariesForAnybody(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "svm-controlplane-bin-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{etcdBinary, serverBinary} {
		path, err := Binary(name)
		must(t, err)
		content, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o755))
	}
	return dir
}

// userNamespacesAllowed tells whether the kernel's settings let users who are not root have user namespaces of any use.
func userNamespacesAllowed(t *testing.T) bool {
	t.Helper()
	for file, forbidding := range map[string]string{
		"/proc/sys/user/max_user_namespaces":                     "0",
		"/proc/sys/kernel/unprivileged_userns_clone":             "0",
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
	} {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		must(t, err)
		if strings.TrimSpace(string(content)) == forbidding {
			return false
		}
	}
	return true
}

func TestAProgramThatEndsByItselfIsNoticed(t *testing.T) {
	t.Parallel()
	thread := newThread()
	defer thread.end()
	h := &Host{name: "here", thread: thread, netns: -1}
	p, err := startProcess(
		h,
		Program{Name: "failing", Path: "/bin/sh", Args: []string{"-c", "echo last words; exit 3"}},
		filepath.Join(t.TempDir(), "log"),
	)
	must(t, err)
	select {
	case <-p.Done():
	case <-time.After(testTimeout):
		t.Fatal("the program does not end")
	}
	if err := p.unexpectedEnd(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("the error is %v", err)
	}
	if !strings.HasSuffix(p.tail(), "last words") {
		t.Errorf("the end of the log is %q", p.tail())
	}
}
