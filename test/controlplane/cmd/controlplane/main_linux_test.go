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
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	// roleEnv makes the test binary the command. Its value is how.
	roleEnv    = "SVM_CONTROLPLANE_COMMAND"
	plain      = "plain"
	restricted = "restricted"

	testTimeout = 10 * time.Minute
)

// The tests are outside of the namespaces, as a user in another terminal is.
func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case plain:
		main()
		os.Exit(0)
	case restricted:
		// This is how a system looks that lets nobody have a network namespace.
		if err := os.WriteFile("/proc/sys/user/max_net_namespaces", []byte("0"), 0); err != nil {
			panic(err)
		}
		main()
		os.Exit(0)
	}
	for _, name := range newOptions().binaries() {
		if _, err := controlplane.Binary(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// output is what a command printed so far.
type output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}

type command struct {
	cmd  *exec.Cmd
	out  *output
	done chan error
}

func start(t *testing.T, role string, attributes *syscall.SysProcAttr, args ...string) *command {
	t.Helper()
	c := &command{cmd: exec.Command("/proc/self/exe", args...), out: &output{}, done: make(chan error, 1)}
	c.cmd.Env = slices.Concat(os.Environ(), controlplane.CollectLate, []string{roleEnv + "=" + role})
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.SysProcAttr = attributes
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	t.Cleanup(func() {
		if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	})
	return c
}

func (c *command) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.done:
		return err
	case <-time.After(testTimeout):
		t.Fatalf("the command does not end:\n%s", c.out)
		return nil
	}
}

// ready waits until the command says that it is up, and returns a client by what it said.
func (c *command) ready(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	said := regexp.MustCompile(`export KUBECONFIG=(.+)\n(?:.*\n)*.*Interrupt`)
	framework.Eventually(t, testTimeout, func(context.Context) error {
		select {
		case err := <-c.done:
			t.Fatalf("the command ended: %v\n%s", err, c.out)
		default:
		}
		if !said.MatchString(c.out.String()) {
			return fmt.Errorf("it says:\n%s", c.out)
		}
		return nil
	})
	config, err := clientcmd.BuildConfigFromFlags("", said.FindStringSubmatch(c.out.String())[1])
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTwoServersAreReachedFromOutside(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	c := start(t, plain, nil, "--servers=2", "--allow-all", "--storage-version-api", "--kubeconfig="+kubeconfig)
	client := c.ready(t)

	versions, err := client.InternalV1alpha1().StorageVersions().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(versions.Items) == 0 {
		t.Error("there are no storage versions")
	}
	for _, v := range versions.Items {
		servers := sets.New[string]()
		for _, entry := range v.Status.StorageVersions {
			servers.Insert(entry.APIServerID)
		}
		if servers.Len() != 2 {
			t.Errorf("%s has entries of %v", v.Name, sets.List(servers))
		}
	}
	c.tellsHowToRunPrograms(t)

	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := c.wait(t); err != nil {
		t.Errorf("an interrupted command ends with %v:\n%s", err, c.out)
	}
	dir := regexp.MustCompile(`Logs are in (.+)/logs\.`).FindStringSubmatch(c.out.String())[1]
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder %s is still there: %v", dir, err)
	}
}

// tellsHowToRunPrograms wants commands that work on the host of a server.
func (c *command) tellsHowToRunPrograms(t *testing.T) {
	t.Helper()
	said := regexp.MustCompile(
		`  nsenter (--target \d+ --net --uts) .*/svm-controller-manager --kubeconfig=(.+)\n` +
			`  nsenter .*/kubectl-svm verify --etcd-endpoints=http://(.+):`).FindStringSubmatch(c.out.String())
	if said == nil {
		t.Fatalf("the command does not tell how to run a manager:\n%s", c.out)
	}
	manager, err := clientcmd.BuildConfigFromFlags("", said[2])
	if err != nil {
		t.Fatal(err)
	}
	server, _, err := net.SplitHostPort(strings.TrimPrefix(manager.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	enter := strings.Fields(said[1])
	if os.Getuid() != 0 {
		enter = append(enter, "--user", "--preserve-credentials")
	}
	for _, address := range []string{server, said[3]} {
		out, err := exec.Command("nsenter", append(enter, "ip", "route", "get", address)...).CombinedOutput()
		if err != nil {
			t.Errorf("there is no way to %s: %v: %s", address, err, out)
		}
	}
}

func TestWithoutNamespacesOneServerRunsAndTheCommandSaysWhy(t *testing.T) {
	t.Parallel()
	c := start(t, restricted, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}, "--servers=3", "--allow-all")
	client := c.ready(t)
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"Running one API server instead of 3",
		"run as root, or allow unprivileged user namespaces",
	} {
		if !strings.Contains(c.out.String(), want) {
			t.Errorf("the command does not say %q:\n%s", want, c.out)
		}
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.wait(t); err != nil {
		t.Errorf("a terminated command ends with %v:\n%s", err, c.out)
	}
}

func TestWrongFlagsAreRefusedWithAdvice(t *testing.T) {
	t.Parallel()
	occupied := t.TempDir()
	if err := os.WriteFile(filepath.Join(occupied, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no servers", []string{"--servers=0"}, "--servers=0: it must be between 1 and 20"},
		{"too many servers", []string{"--servers=21"}, "between 1 and 20"},
		{
			"a version that is none",
			[]string{"--emulated-version=next"},
			`--emulated-version="next": it must be a major and a minor version, as 1.36`,
		},
		{"a version with a patch", []string{"--emulated-version=1.36.1"}, "it must be a major and a minor version"},
		{"an unknown flag", []string{"--server=3"}, "unknown flag: --server"},
		{"an argument", []string{"three"}, `unknown command "three"`},
		{"a folder in use", []string{"--dir=" + occupied}, "is not empty: name an empty or a new one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, plain, nil, tc.args...)
			if err := c.wait(t); err == nil {
				t.Error("the command succeeded")
			}
			if !strings.Contains(c.out.String(), tc.want) {
				t.Errorf("the command does not say %q:\n%s", tc.want, c.out)
			}
		})
	}
}
