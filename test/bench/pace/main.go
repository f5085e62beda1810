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

// Pace measures what other clients of an API server feel of a migration, and how fast the migration is: one object at a time,
// several at a time without a pacer, and paced. All of it shares this machine, as it would share a small control plane.
//
//	go run ./test/bench/pace                                    idle, at most 50 a second, naked 1, 4 and 64 at a time, paced; one after the other, twice
//	go run ./test/bench/pace -scenarios=idle,paced -rounds=5
//	go run ./test/bench/pace -scenarios=naked-64,unpaced-64     limits lifted against none
//
// Rewrites are real: between passes the storage version of the custom resource is flipped.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

type options struct {
	objects, size, chunk, rounds int
	scenarios                    string
	slice                        time.Duration
	foreground                   float64
	trace, noisy                 bool
	budget                       time.Duration
	dir, worker, kubeconfig      string
}

func main() {
	var o options
	flag.IntVar(&o.objects, "objects", 5000, "how many objects there are")
	flag.IntVar(&o.size, "size", 1500, "how large an object is, in bytes")
	flag.IntVar(&o.chunk, "chunk", 500, "how many objects are listed at a time")
	flag.IntVar(&o.rounds, "rounds", 2, "how often the scenarios are played")
	flag.StringVar(&o.scenarios, "scenarios", "idle,rate-50,naked-1,naked-4,naked-64,paced", "what is played, in order: idle, naked-<n>, paced, unpaced-<n>, rate-<n>, which is paced and at most so many a second")
	flag.DurationVar(&o.slice, "slice", 15*time.Second, "how long each scenario is played in a round")
	flag.Float64Var(&o.foreground, "foreground", 50, "requests a second of the foreground client")
	flag.DurationVar(&o.budget, "budget", 235*time.Second, "how long everything may take; what was not played by then is not")
	flag.StringVar(&o.dir, "dir", "", "a folder to keep data and logs in")
	flag.BoolVar(&o.noisy, "noisy", false, "count also what was measured while other programs used the machine")
	flag.BoolVar(&o.trace, "trace", false, "print the pacer's state twice a second")
	flag.StringVar(&o.worker, "worker", "", "internal: what this process does for another")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "internal: how it reaches the server")
	flag.Parse()
	klog.LogToStderr(false) // of requests that end with a scenario
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	run := measure
	if o.worker == foregroundWorker {
		run = forForeground
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "pace:", err)
		os.Exit(1)
	}
}

// measure plays the scenarios in turn, as often as asked for: machines are noisy, and what is compared must share the noise.
func measure(ctx context.Context, o options) (err error) {
	began := time.Now()
	var scenarios []*scenario
	for name := range strings.SplitSeq(o.scenarios, ",") {
		s, err := newScenario(name)
		if err != nil {
			return err
		}
		scenarios = append(scenarios, s)
	}
	cp, err := controlplane.New(ctx, controlplane.Config{Dir: o.dir})
	if err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() { err = errors.Join(err, cp.Close()) }()
	subject, err := newSubject(ctx, cp, o)
	if err != nil {
		return err
	}
	front, err := startForeground(ctx, cp, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.stop()) }()
	end := began.Add(o.budget)
	cpu := cpu{servers: []int{cp.Etcd().Process().Pid(), cp.Servers()[0].Process().Pid()}, foreground: front.cmd.Process.Pid}
	for round := range o.rounds {
		for _, s := range scenarios {
			if time.Until(end) < 2*o.slice {
				break
			}
			if err := s.play(ctx, o, subject, front, cpu); err != nil {
				return fmt.Errorf("playing %s in round %d: %w", s.name, round+1, err)
			}
		}
	}
	report(os.Stdout, scenarios)
	return nil
}
