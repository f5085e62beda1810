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
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	asNaked, asOthers = "naked", "others"
	// nakedDone is what the naked client prints when it has rewritten all objects.
	nakedDone = "all objects are rewritten"
	chunk     = 500
	// configMaps is how many the other client uses: two operations on one at a time would conflict.
	configMaps = 200
	// mostInFlight is how many operations may be under way. On a machine that cannot do so many they would become more
	// and more.
	mostInFlight = 1000
)

// startSelf starts this program once more, as a client with a process of its own.
func startSelf(cp *controlplane.ControlPlane, as string, args ...string) (*controlplane.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := kubeconfigOf(cp, as)
	if err != nil {
		return nil, err
	}
	// A log of its own, because what it prints counts.
	name := fmt.Sprintf("%s-%d", as, time.Now().UnixNano())
	args = append([]string{"-as=" + as, "-kubeconfig=" + kubeconfig}, args...)
	return cp.StartProcess(controlplane.Program{Name: name, Path: self, Args: args})
}

// beClient is what a process does that startSelf started.
func beClient(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	if o.as == asOthers {
		return beOthers(ctx, config, o.at)
	}
	if err := rewriteAll(ctx, config, o.version, int(o.at)); err != nil {
		return err
	}
	fmt.Println(nakedDone)
	<-ctx.Done() // what it used can be read until then
	return nil
}

// rewriteAll rewrites all objects, n at a time, with nothing around it.
func rewriteAll(ctx context.Context, config *rest.Config, version string, n int) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	objects := client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: "widgets"})
	var rewritten errgroup.Group
	rewritten.SetLimit(n)
	for token := ""; ; {
		list, err := objects.List(ctx, metav1.ListOptions{Limit: chunk, Continue: token})
		if err != nil {
			return err
		}
		for i := range list.Items {
			object := &list.Items[i]
			rewritten.Go(func() error {
				patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q}}`, object.UID, object.ResourceVersion)
				namespaced := objects.Namespace(object.Namespace)
				_, err := namespaced.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
				return err
			})
		}
		if token = list.Continue; token == "" {
			return rewritten.Wait()
		}
	}
}

// beOthers reads and updates ConfigMaps at a fixed rate, however long that takes, and prints when each operation was
// due and how long after that it ended.
func beOthers(ctx context.Context, config *rest.Config, perSecond float64) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for i := range configMaps {
		blank := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMapName(i)}}
		if _, err := maps.Create(ctx, blank, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	var inFlight atomic.Int64
	period := time.Duration(float64(time.Second) / perSecond)
	for i, due := 0, time.Now(); ctx.Err() == nil; i, due = i+1, due.Add(period) {
		time.Sleep(time.Until(due))
		if inFlight.Add(1) > mostInFlight {
			return fmt.Errorf("the servers cannot do %g operations a second on this machine", perSecond)
		}
		go func() {
			defer inFlight.Add(-1)
			// A conflict is with an operation that is far too late, which counts by itself.
			if err := operate(ctx, maps, i); err == nil || apierrors.IsConflict(err) {
				fmt.Println(due.UnixNano(), time.Since(due).Nanoseconds())
			} else {
				fmt.Fprintln(os.Stderr, "the other client:", err)
			}
		}()
	}
	return nil
}

func configMapName(i int) string { return fmt.Sprintf("others-%d", i%configMaps) }

// operate reads a ConfigMap and updates it.
func operate(ctx context.Context, maps typedcorev1.ConfigMapInterface, i int) error {
	found, err := maps.Get(ctx, configMapName(i), metav1.GetOptions{})
	if err != nil {
		return err
	}
	found.Data = map[string]string{"count": strconv.Itoa(i)}
	_, err = maps.Update(ctx, found, metav1.UpdateOptions{})
	return err
}

// others is the other client. It shares nothing with who migrates but the machine and the servers.
type others struct{ process *controlplane.Process }

// startOthers starts the other client. At no operations a second there is none.
func startOthers(cp *controlplane.ControlPlane, perSecond float64) (others, error) {
	if perSecond <= 0 {
		return others{}, nil
	}
	process, err := startSelf(cp, asOthers, fmt.Sprintf("-at=%g", perSecond))
	return others{process}, err
}

func (o others) stop() error {
	if o.process == nil {
		return nil
	}
	if !o.process.Running() {
		return fmt.Errorf("the other client ended by itself, see %s", o.process.LogPath())
	}
	return o.process.Kill()
}

// sample is one operation of the other client.
type sample struct {
	due  time.Time
	took time.Duration
}

// samples are all operations so far, in the order in which they were due.
func (o others) samples() (all []sample) {
	if o.process == nil {
		return nil
	}
	lines := bufio.NewScanner(strings.NewReader(o.process.Log()))
	for lines.Scan() {
		var due, took int64
		if _, err := fmt.Sscan(lines.Text(), &due, &took); err == nil { // else it is not of an operation
			all = append(all, sample{time.Unix(0, due), time.Duration(took)})
		}
	}
	slices.SortFunc(all, func(a, b sample) int { return a.due.Compare(b.due) })
	return all
}

// between are the latencies in milliseconds, sorted, of the operations that were due in that time.
func between(samples []sample, from, to time.Time) (took []float64) {
	for _, s := range samples {
		if !s.due.Before(from) && s.due.Before(to) {
			took = append(took, s.took.Seconds()*1e3)
		}
	}
	slices.Sort(took)
	return took
}
