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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// configMaps is how many the other client uses: two operations on one at a time would conflict.
const configMaps = 200

// others is the other client, in a process of its own, so that it shares nothing with the migrator but the machine.
type others struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	read   chan struct{} // closed when its output ended
	broken error         // why its output could not be read to the end, known when read is closed

	mu      sync.Mutex
	samples []sample
}

type sample struct {
	due  time.Time
	took time.Duration
}

// startOthers starts the other client. At no operations a second there is none.
func startOthers(ctx context.Context, cp *controlplane.ControlPlane, perSecond float64) (*others, error) {
	o := &others{read: make(chan struct{})}
	if perSecond <= 0 {
		return o, nil
	}
	kubeconfig := filepath.Join(cp.Dir(), "others.kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config("others", "system:masters")); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.cmd = exec.CommandContext(ctx, self, "-kubeconfig="+kubeconfig, fmt.Sprintf("-others=%g", perSecond))
	o.cmd.Stderr = os.Stderr
	stdout, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if o.stdin, err = o.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := o.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the other client: %w", err)
	}
	go o.collect(stdout)
	return o, nil
}

func (o *others) collect(from io.Reader) {
	defer close(o.read)
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var due, took int64
		if _, err := fmt.Sscan(lines.Text(), &due, &took); err != nil {
			continue // cut off at the end
		}
		o.mu.Lock()
		o.samples = append(o.samples, sample{time.Unix(0, due), time.Duration(took)})
		o.mu.Unlock()
	}
	o.broken = lines.Err()
}

func (o *others) stop() error {
	if o.cmd == nil {
		return nil
	}
	err := o.stdin.Close() // which ends it
	<-o.read
	return errors.Join(err, o.broken, o.cmd.Wait())
}

// between are the latencies of operations that were due in that time.
func (o *others) between(from, to time.Time) latencies {
	o.mu.Lock()
	defer o.mu.Unlock()
	var took latencies
	for _, s := range o.samples {
		if !s.due.Before(from) && s.due.Before(to) {
			took = append(took, s.took)
		}
	}
	slices.Sort(took)
	return took
}

// latencies are sorted.
type latencies []time.Duration

func (l latencies) quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[max(0, int(math.Ceil(q*float64(len(l))))-1)]
}

// ms is a quantile in milliseconds, not a number if there is none.
func (l latencies) ms(q float64) float64 {
	if len(l) == 0 {
		return math.NaN()
	}
	return l.quantile(q).Seconds() * 1e3
}

// beOthers is the other client's process. It ends with its standard input.
func beOthers(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for i := range configMaps {
		blank := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: nameOf(i)}}
		if _, err := maps.Create(ctx, blank, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	period := time.Duration(float64(time.Second) / o.others)
	var operations sync.WaitGroup
	for i, due := 0, time.Now(); ctx.Err() == nil; i, due = i+1, due.Add(period) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(due)):
			operations.Go(func() {
				// A conflict is with an operation that is far too late, which counts by itself.
				if err := operate(ctx, maps, i); err == nil || apierrors.IsConflict(err) {
					fmt.Println(due.UnixNano(), time.Since(due).Nanoseconds())
				} else if ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "the other client:", err)
				}
			})
		}
	}
	operations.Wait()
	return nil
}

func nameOf(i int) string { return fmt.Sprintf("others-%d", i%configMaps) }

// operate reads a ConfigMap and updates it.
func operate(ctx context.Context, maps typedcorev1.ConfigMapInterface, i int) error {
	found, err := maps.Get(ctx, nameOf(i), metav1.GetOptions{})
	if err != nil {
		return err
	}
	found.Data = map[string]string{"count": strconv.Itoa(i)}
	_, err = maps.Update(ctx, found, metav1.UpdateOptions{})
	return err
}
