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
// Pace measures what another client of an API server feels of a migration, and how fast the migration is: of this
// manager and of the migrator of kube-controller-manager, in turn. All of it shares this machine, as it would share a
// small control plane.
//
//	go run ./test/bench/pace                        both, beside nobody, 50 and 150 operations a second, three rounds
//	go run ./test/bench/pace -rates=150 -rounds=5 -contenders=in-tree,manager,manager:--max-concurrent-rewrites=1
//	go run ./test/bench/pace -rates=150 -contenders=manager -for=10m        each minute of ten minutes
//
// The other client reads and updates ConfigMaps at a fixed rate, however long that takes, and its latencies count from
// when an operation was due. Each run measures it before the migration (quiet) and during it: from three seconds after
// the first rewrite, because until then the API server fills the watch cache of a resource whose storage version
// changed, for which everybody waits, whoever migrates. kube-controller-manager runs all the time, as it does in
// clusters.
//
// Build first: make build controlplane with=kube-controller-manager.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/test/bench/contender"
	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	inTree  = "in-tree"
	manager = "manager"
	// lastingRate is how many objects there are for each second of -for: more than the manager rewrites beside others.
	lastingRate = 120
)

type options struct {
	objects, size, rounds int
	rates, migrators      string
	quiet, lasting        time.Duration
	dir                   string
	others                float64
	kubeconfig            string
}

func main() {
	var o options
	flag.IntVar(&o.objects, "objects", 2500, "how many objects there are")
	flag.IntVar(&o.size, "size", 1500, "how large an object is, in bytes")
	flag.IntVar(&o.rounds, "rounds", 3, "how often all runs are repeated, in turn")
	flag.StringVar(&o.rates, "rates", "0,50,150", "how many operations a second the other client does")
	flag.StringVar(&o.migrators, "contenders", inTree+","+manager,
		"who migrates: in-tree, or manager, which a colon and flags of the manager may follow, divided by spaces")
	flag.DurationVar(&o.quiet, "quiet", 8*time.Second, "how long the other client is measured before each migration")
	flag.DurationVar(&o.lasting, "for", 0, "end each migration of the manager after that time, and print its minutes")
	flag.StringVar(&o.dir, "dir", "", "a folder to keep data and logs in")
	flag.Float64Var(&o.others, "others", 0, "internal: be the other client, at that rate")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "internal: how the other client reaches the server")
	flag.Parse()
	klog.LogToStderr(false) // of requests that end with a run
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	do := measure
	if o.others > 0 {
		do = beOthers
	}
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "pace:", err)
		os.Exit(1)
	}
}

// bench is what all runs share.
type bench struct {
	options
	cp       *controlplane.ControlPlane
	resource *custom.Resource
}

// measure does all runs, round by round: machines are noisy, and what is compared must share the noise.
func measure(ctx context.Context, o options) (err error) {
	if o.lasting > 0 {
		if strings.Contains(o.migrators, inTree) {
			return errors.New("-for needs -contenders without in-tree, whose migrations cannot be ended")
		}
		o.objects = int(o.lasting.Seconds() * lastingRate)
	}
	b := &bench{options: o}
	if b.cp, err = controlplane.New(ctx, controlplane.Config{Dir: o.dir}); err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() { err = errors.Join(err, b.cp.Close()) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	var results results
	defer func() { err = errors.Join(err, results.print(os.Stdout)) }()
	for round := range o.rounds {
		for rate := range strings.SplitSeq(o.rates, ",") {
			perSecond, err := strconv.ParseFloat(rate, 64)
			if err != nil {
				return err
			}
			for name := range strings.SplitSeq(o.migrators, ",") {
				f, err := b.run(ctx, name, perSecond)
				if err != nil {
					return fmt.Errorf("%s beside %s operations a second in round %d: %w", name, rate, round+1, err)
				}
				fmt.Fprintln(os.Stderr, round+1, name, perSecond, f)
				results.add(name, rate, f)
			}
		}
	}
	return nil
}

// prepare makes the objects.
func (b *bench) prepare(ctx context.Context) (err error) {
	if err := controlplane.InstallMigrationAPI(ctx, b.cp.AdminConfig()); err != nil {
		return err
	}
	if b.resource, err = custom.Define(ctx, b.cp, "widgets", "Widget", b.size, nil); err != nil {
		return err
	}
	if err := b.resource.Fill(ctx, b.objects); err != nil {
		return fmt.Errorf("creating objects: %w", err)
	}
	return nil
}

// contenders starts kube-controller-manager, as it runs in clusters, and the manager if that is who migrates. A
// kube-controller-manager that went on from run to run would wait longer and longer before it watches the resource
// again, for each change of the definition ends its watches.
func (b *bench) contenders(ctx context.Context, name string) (c *contender.Contender, stop func() error, err error) {
	if c, err = contender.NewInTree(b.cp, b.resource); err != nil {
		return nil, nil, err
	}
	stop = c.Process.Kill
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	kind, flags, _ := strings.Cut(name, ":")
	switch kind {
	case inTree:
		return c, stop, c.Migrate(ctx) // which warms it up
	case manager:
		if c, err = contender.NewManager(ctx, b.cp, b.resource, strings.Fields(flags)...); err != nil {
			return nil, nil, err
		}
		stopInTree := stop
		return c, func() error { return errors.Join(c.Process.Kill(), stopInTree()) }, nil
	}
	return nil, nil, fmt.Errorf("there is no contender %q", name)
}
