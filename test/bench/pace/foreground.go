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
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	foregroundWorker = "foreground"
	foregroundUser   = "alice"
	// mixture is after how many requests the kinds of requests repeat.
	mixture        = 8
	listsPerSecond = 7
	// foregroundObjects is odd, so that every object meets every kind of request.
	foregroundObjects = 11
)

// foreground is a client in a process of its own, so that it shares nothing but the machine with the migrator. It begins a request at fixed
// times, whether or not the ones before have ended, and measures from the time at which it should have begun.
type foreground struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	folder string
	read   chan struct{}

	mu      sync.Mutex
	samples []sample
	failed  int
}

type sample struct {
	at   time.Time
	took time.Duration
}

func startForeground(ctx context.Context, cp *controlplane.ControlPlane, o options) (*foreground, error) {
	folder, err := os.MkdirTemp("", "pace-")
	if err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config(foregroundUser)); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("looking for this program: %w", err)
	}
	f := &foreground{folder: folder, read: make(chan struct{})}
	f.cmd = exec.CommandContext(ctx, self, "-worker="+foregroundWorker, "-kubeconfig="+kubeconfig, fmt.Sprintf("-foreground=%g", o.foreground))
	f.cmd.Stderr = os.Stderr
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("reading from the foreground client: %w", err)
	}
	if f.stdin, err = f.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("writing to the foreground client: %w", err)
	}
	if err := f.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the foreground client: %w", err)
	}
	go f.collect(stdout)
	return f, nil
}

func (f *foreground) collect(from io.Reader) {
	defer close(f.read)
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var at, took int64
		if _, err := fmt.Sscan(lines.Text(), &at, &took); err != nil {
			continue // a line that was cut off at the end
		}
		f.mu.Lock()
		if took < 0 {
			f.failed++
		} else {
			f.samples = append(f.samples, sample{at: time.Unix(0, at), took: time.Duration(took)})
		}
		f.mu.Unlock()
	}
}

// between are the sorted latencies of requests that began in that time.
func (f *foreground) between(from, to time.Time) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var took []time.Duration
	for _, s := range f.samples {
		if !s.at.Before(from) && s.at.Before(to) {
			took = append(took, s.took)
		}
	}
	slices.Sort(took)
	return took
}

// slowest is the slowest request that began in that time.
func (f *foreground) slowest(from, to time.Time) (at time.Time, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.samples {
		if !s.at.Before(from) && s.at.Before(to) && s.took > took {
			at, took = s.at, s.took
		}
	}
	return at, took
}

func (f *foreground) stop() error {
	err := f.stdin.Close() // which ends it
	<-f.read
	err = errors.Join(err, f.cmd.Wait(), os.RemoveAll(f.folder))
	if f.failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d foreground requests failed", f.failed))
	}
	if err != nil {
		return fmt.Errorf("ending the foreground client: %w", err)
	}
	return nil
}

// forForeground is the foreground client's process. It ends with its standard input.
func forForeground(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends, it ended
	}()
	out := make(chan string, 1000)
	var written sync.WaitGroup
	written.Go(func() {
		for line := range out {
			fmt.Println(line)
		}
	})
	var requests sync.WaitGroup
	listEvery := mixture * max(1, int(math.Ceil(o.foreground/mixture/listsPerSecond)))
	period := time.Duration(float64(time.Second) / o.foreground)
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	for i, due := 0, time.Now(); ctx.Err() == nil; i, due = i+1, due.Add(period) {
		for time.Now().Before(due) && ctx.Err() == nil {
			pause(ctx, time.Until(due))
		}
		requests.Go(func() {
			err := request(ctx, client, i, listEvery)
			took := time.Since(due)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				fmt.Fprintln(os.Stderr, "foreground:", err)
				out <- fmt.Sprintln(due.UnixNano(), -1)
			default:
				out <- fmt.Sprint(due.UnixNano(), took.Nanoseconds())
			}
		})
	}
	requests.Wait()
	close(out)
	written.Wait()
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// request is one of a mixture. A Lease is written before each list, as Leases are all the time in any cluster: a list waits until the server's cache
// has seen the newest revision, of whatever resource. The server asks for that ten times a second at most, so that lists
// that come more often wait for each other's sake: there must be fewer, or what is measured is that.
func request(ctx context.Context, client kubernetes.Interface, i, listEvery int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	name := fmt.Sprintf("foreground-%d", i%foregroundObjects)
	var err error
	if i%listEvery == mixture-2 {
		_, err = maps.List(ctx, metav1.ListOptions{})
		return err
	}
	switch i % mixture {
	case 1:
		changed := foregroundMap(name)
		changed.Data["count"] = strconv.Itoa(i)
		_, err = maps.Update(ctx, changed, metav1.UpdateOptions{})
	case 3, 5:
		patch := fmt.Appendf(nil, `{"spec":{"leaseTransitions":%d}}`, i)
		_, err = client.CoordinationV1().Leases(metav1.NamespaceDefault).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	default:
		_, err = maps.Get(ctx, name, metav1.GetOptions{})
	}
	return err
}

func foregroundLease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(foregroundUser)}}
}

func foregroundMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"count": "0"}}
}
