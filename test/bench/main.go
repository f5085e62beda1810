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

// Bench compares those who migrate stored objects: this manager, the migrator of kube-controller-manager,
// kube-storage-version-migrator, and clients that send the same rewrites without anything around them.
//
//	make bench                       everything, an hour and a half; writes docs/benchmarks.md
//	make bench QUICK=1               fewer objects and one round, ten minutes; writes into _output/bench only
//	make bench KSVM=<folder>         with kube-storage-version-migrator, whose migrator and trigger are in the folder
//	go run ./test/bench -scenarios=beside-150 -contenders='ours;in-tree' -rounds=9
//	go run ./test/bench -render=_output/bench/results.json -document=docs/benchmarks.md
//
// Each contender is a process of its own, as are etcd, kube-apiserver and the other client. All of it shares this
// machine, as it would share a small control plane, so nothing else should run on it. Each scenario has a control plane
// of its own. Machines are noisy, and what is compared must share the noise: a round measures each contender once, in a
// new order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

type options struct {
	rounds                int
	scale                 float64
	scenarios, contenders string
	quick                 bool
	quiet, idle           time.Duration
	ksvm                  string
	seed                  uint64
	out, document, render string

	// Of the clients.
	as, kubeconfig, version string
	at                      float64
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 0, "how often each contender is measured; each scenario has its own number if 0")
	flag.Float64Var(&o.scale, "scale", 1, "what the numbers of objects are multiplied by")
	flag.StringVar(&o.scenarios, "scenarios", strings.Join(defaultScenarios(), ","), "what is measured, also lasting")
	flag.StringVar(&o.contenders, "contenders", "", "who is measured, divided by semicolons; all if empty")
	flag.BoolVar(&o.quick, "quick", false, "measure a little of everything in one round, to see that it works")
	flag.DurationVar(&o.quiet, "quiet", 8*time.Second, "how long the other client is measured before each migration")
	flag.DurationVar(&o.idle, "idle", 10*time.Minute, "how long requests are counted while nothing happens")
	flag.StringVar(&o.ksvm, "ksvm", "", "the folder of kube-storage-version-migrator; without it that is left out")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "determines the order of the contenders")
	flag.StringVar(&o.out, "out", "_output/bench", "the folder for the results and the plots")
	flag.StringVar(&o.document, "document", "", "the document to write the tables into, between its markers")
	flag.StringVar(&o.render, "render", "", "write the tables of these results instead of measuring")
	flag.StringVar(&o.as, "as", "", "internal: be this client")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "internal: how the client reaches the server")
	flag.StringVar(&o.version, "version", "", "internal: at which version the client writes")
	flag.Float64Var(&o.at, "at", 0, "internal: how many objects at a time, or operations a second")
	flag.Parse()
	klog.LogToStderr(false) // of requests that end with a run
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, o options) error {
	switch {
	case o.rounds < 0:
		return fmt.Errorf("-rounds is %d: it must be at least 1, or 0 for the number of each scenario", o.rounds)
	case o.as != "":
		return beClient(ctx, o)
	case o.render != "":
		r, err := readResults(o.render)
		if err != nil {
			return err
		}
		return r.publish(o)
	}
	if err := o.checkContenders(); err != nil {
		return err
	}
	if o.quick {
		o.rounds, o.scale, o.quiet, o.idle = 1, min(o.scale, 0.4), 4*time.Second, time.Minute
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	b := &bench{options: o, results: newResults(o)}
	err := b.all(ctx)
	// What was measured counts also if something failed later.
	return errors.Join(err, b.results.write(filepath.Join(o.out, "results.json")), b.results.publish(o))
}
