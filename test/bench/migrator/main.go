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

// Migrator measures the manager itself at migrations of a custom resource: how fast it is, what it costs the API
// server, and how much memory it takes, beside clients that send the same rewrites without anything around them, and
// beside the migrator of kube-controller-manager.
//
//	go run ./test/bench/migrator
//	go run ./test/bench/migrator -objects=50000 -runs=unpaced-64
//
// Every run rewrites all objects, for the storage version changes before it. Build first: make build controlplane
// with=kube-controller-manager.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

type options struct {
	objects, size, rounds int
	runs                  string
}

func main() {
	var o options
	flag.IntVar(&o.objects, "objects", 5000, "how many objects there are")
	flag.IntVar(&o.size, "size", 1500, "how large an object is, in bytes")
	flag.IntVar(&o.rounds, "rounds", 1, "how often the runs are repeated, in turn")
	flag.StringVar(&o.runs, "runs", "naked-1,naked-64,in-tree,manager,unpaced-64",
		"what is run: naked-<n> is n clients, in-tree the migrator of kube-controller-manager, "+
			"manager this one as it is by default, unpaced-<n> this one with n rewrites at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "migrator:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, o options) (err error) {
	cp, err := controlplane.New(ctx, controlplane.Config{})
	if err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() { err = errors.Join(err, cp.Close()) }()
	if err := controlplane.InstallMigrationAPI(ctx, cp.AdminConfig()); err != nil {
		return err
	}
	resource, err := custom.Define(ctx, cp, "widgets", "Widget", o.size, nil)
	if err != nil {
		return err
	}
	if err := resource.Fill(ctx, o.objects); err != nil {
		return fmt.Errorf("creating objects: %w", err)
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer func() { err = errors.Join(err, out.Flush()) }()
	_, _ = fmt.Fprintln(out, "run\tobjects\tseconds\tof rewriting\tobjects/s then\tserver CPU ms/object\t"+
		"client CPU µs/object\tclient peak MiB\tstatus writes\t")
	for range o.rounds {
		for name := range strings.SplitSeq(o.runs, ",") {
			f, err := run(ctx, cp, resource, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			n := time.Duration(o.objects)
			_, _ = fmt.Fprintf(out, "%s\t%d\t%.1f\t%.1f\t%.0f\t%.2f\t%.0f\t%.0f\t%d\t\n",
				name, o.objects, f.took.Seconds(), f.wrote.Seconds(), float64(o.objects)/f.wrote.Seconds(),
				(f.server/n).Seconds()*1e3, (f.client/n).Seconds()*1e6, float64(f.peak)/(1<<20), f.statusWrites)
		}
	}
	return nil
}
