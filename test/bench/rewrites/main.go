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

// Rewrites measures the kinds of requests that rewrite an object in the current encoding: what each costs the API
// server, the client and the network, for each class of resource.
//
//	go run ./test/bench/rewrites
//	go run ./test/bench/rewrites -objects=2000 -classes=custom,converted
//
// Each rewrite of custom resources and secrets really changes what is stored, because the storage version or the
// encryption key changes before each pass. Objects of aggregated resources are already current, so there only the
// request counts.
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

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

type options struct {
	objects, size, workers int
	classes                string
}

func main() {
	var o options
	flag.IntVar(&o.objects, "objects", 1000, "how many objects there are of each class")
	flag.IntVar(&o.size, "size", 1500, "how large an object is, in bytes")
	flag.IntVar(&o.workers, "workers", 4, "how many objects are written at a time")
	flag.StringVar(&o.classes, "classes", "custom,converted,built-in,aggregated", "which classes of resources to measure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "rewrites:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, o options) (err error) {
	server := controlplane.Server{EncryptionConfig: samples.Encryption("one", "two")}
	cp, err := controlplane.New(ctx, controlplane.Config{Servers: []controlplane.Server{server}})
	if err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() { err = errors.Join(err, cp.Close()) }()
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(out, "class\twrite\tobjects/s\tserver CPU ms\tclient CPU µs\tbytes sent\tbytes received\t"+
		"stored\ttraces\t")
	for name := range strings.SplitSeq(o.classes, ",") {
		make, known := classes[name]
		if !known {
			return fmt.Errorf("-classes knows %q, got %q", classNames(), name)
		}
		c, err := make(ctx, cp, o)
		if err != nil {
			return fmt.Errorf("preparing %s: %w", name, err)
		}
		if err := c.fill(ctx); err != nil {
			return fmt.Errorf("creating objects of %s: %w", name, err)
		}
		for _, w := range writes {
			f, err := c.measure(ctx, w)
			if err != nil {
				return fmt.Errorf("%s by %s: %w", name, w.name, err)
			}
			_, _ = fmt.Fprintf(out, "%s\t%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t%d\t%d\t\n", name, w.name,
				f.perSecond, f.serverCPU.Seconds()*1e3, f.clientCPU.Seconds()*1e6,
				f.sent, f.received, f.stored, f.traces)
		}
		if c.end != nil {
			if err := c.end(); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// figures are for one object unless the comment of a field says otherwise.
type figures struct {
	perSecond            float64
	serverCPU, clientCPU time.Duration
	sent, received       float64
	stored, traces       int // number of objects that were stored again, and of those with a new entry in managedFields
}
