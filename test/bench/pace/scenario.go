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
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
)

const (
	idle = "idle"
	// quiet is how much of a core other programs may use, or what was measured meanwhile does not count.
	quiet = 0.15
)

// scenario is one way to migrate, and what was measured of it.
type scenario struct {
	name    string
	workers int
	pace    func() *pacer.Pacer // nil: naked

	lasted            time.Duration
	rewritten, others int64
	latencies         []time.Duration
	p99s              []time.Duration // of each round
	server, client    time.Duration   // CPU
	elsewhere         []float64       // cores used by others in each round
}

func newScenario(name string) (*scenario, error) {
	s := &scenario{name: name}
	if name == idle {
		return s, nil
	}
	kind, number, _ := strings.Cut(name, "-")
	n := 0
	if number != "" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return nil, fmt.Errorf("scenario %q: %w", name, err)
		}
	}
	s.workers = max(n, pacer.DefaultMaxConcurrent)
	switch kind {
	case "naked":
		s.workers = n
	case "paced":
		s.pace = func() *pacer.Pacer { return pacer.New(pacer.Options{MaxConcurrent: n}) }
	case "unpaced":
		s.pace = func() *pacer.Pacer { return pacer.New(pacer.Options{MaxConcurrent: n, Unpaced: true}) }
	case "rate":
		s.pace = func() *pacer.Pacer { return pacer.New(pacer.Options{MaxPerSecond: float64(n)}) }
	default:
		return nil, fmt.Errorf("there is no scenario %q", name)
	}
	return s, nil
}

// play plays the scenario once.
func (s *scenario) play(ctx context.Context, o options, of *subject, front *foreground, cpu cpu) error {
	if s.name != idle {
		if err := of.flip(ctx); err != nil {
			return err
		}
	}
	pause(ctx, settleAfter)
	before := *s
	began, used := time.Now(), cpu.used()
	until, cancel := context.WithDeadline(ctx, began.Add(o.slice))
	defer cancel()
	var err error
	if s.name != idle {
		err = s.migrate(until, o, of)
	} else {
		<-until.Done()
	}
	ended, usedAfter := time.Now(), cpu.used()
	if err != nil && until.Err() == nil || ctx.Err() != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	elsewhere := (usedAfter.elsewhere - used.elsewhere).Seconds() / ended.Sub(began).Seconds()
	if elsewhere > quiet && !o.noisy {
		fmt.Printf("%s: not counted, something else used %.2f cores\n", s.name, elsewhere)
		s.rewritten, s.others = before.rewritten, before.others
		return nil
	}
	s.elsewhere = append(s.elsewhere, elsewhere)
	s.lasted += ended.Sub(began)
	s.server += usedAfter.servers - used.servers
	s.client += usedAfter.self - used.self
	pause(ctx, settleAfter) // for the foreground client's last requests
	latencies := front.between(began, ended)
	if o.trace {
		at, took := front.slowest(began, ended)
		fmt.Printf("  %s: the slowest request took %v, at %.3fs (%s)\n", s.name, took.Round(time.Millisecond), at.Sub(began).Seconds(), at.Format(time.StampMilli))
	}
	s.p99s = append(s.p99s, quantile(latencies, 0.99))
	s.latencies = append(s.latencies, latencies...)
	return ctx.Err()
}

// migrate rewrites all objects, or as many as it can until ctx ends.
func (s *scenario) migrate(ctx context.Context, o options, of *subject) error {
	if s.pace == nil {
		return s.pass(ctx, o, of, nil)
	}
	p := s.pace()
	lane := p.Lane()
	defer lane.Close()
	if o.trace {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go trace(ctx, p, lane)
	}
	return s.pass(ctx, o, of, lane)
}

func (s *scenario) pass(ctx context.Context, o options, of *subject, lane *pacer.Lane) error {
	work := make(chan *metav1.PartialObjectMetadata, o.chunk)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(work)
		for token := ""; ; {
			list, err := of.list(ctx, o.chunk, token)
			if err != nil {
				return err
			}
			for i := range list.Items {
				select {
				case work <- &list.Items[i]:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if token = list.Continue; token == "" {
				return nil
			}
		}
	})
	for range s.workers {
		group.Go(func() error {
			for object := range work {
				if err := s.one(ctx, of, lane, object); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (s *scenario) one(ctx context.Context, of *subject, lane *pacer.Lane, object *metav1.PartialObjectMetadata) error {
	var place *pacer.Place
	if lane != nil {
		var err error
		if place, err = lane.Acquire(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	written, err := of.rewrite(ctx, object)
	if place != nil {
		result := pacer.Result{Latency: time.Since(began)}
		if err != nil {
			result.Signal = pacer.Abandoned
		}
		place.Release(result)
	}
	if err != nil {
		return err
	}
	if written {
		atomic.AddInt64(&s.rewritten, 1)
	} else {
		atomic.AddInt64(&s.others, 1)
	}
	return nil
}

func trace(ctx context.Context, p *pacer.Pacer, lane *pacer.Lane) {
	began := time.Now()
	for ctx.Err() == nil {
		state := p.State()
		now, alone := lane.Latency()
		fmt.Printf("  %5.1fs limit %5.2f in flight %2d waiting %2d %4.0f/s now %v alone %v %s\n", time.Since(began).Seconds(), state.Limit, state.InFlight, state.Waiting,
			state.PerSecond, now.Round(10*time.Microsecond), alone.Round(10*time.Microsecond), state.PausedFor)
		pause(ctx, time.Second/2)
	}
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(math.Ceil(q*float64(len(sorted))))-1, len(sorted)-1)]
}

func report(to io.Writer, scenarios []*scenario) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer func() { _ = table.Flush() }() // to a terminal
	_, _ = fmt.Fprintln(table, "scenario\tobjects/s\tp50\tp90\tp99\tp99/idle\tmax\trequests\tp99 of each round\tserver CPU\tclient CPU\tnot written\t")
	var base time.Duration
	for _, s := range scenarios {
		slices.Sort(s.latencies)
		if s.name == idle {
			base = quantile(s.latencies, 0.99)
		}
	}
	for _, s := range scenarios {
		seconds := s.lasted.Seconds()
		p99 := quantile(s.latencies, 0.99)
		rounds := make([]string, len(s.p99s))
		for i, p := range s.p99s {
			rounds[i] = fmt.Sprintf("%.1f(%.2f)", p.Seconds()*1000, s.elsewhere[i])
		}
		fmt.Fprintf(table, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t%d\t%s\t%.2f\t%.2f\t%d\t\n", s.name, float64(s.rewritten)/seconds,
			quantile(s.latencies, 0.5).Seconds()*1000, quantile(s.latencies, 0.9).Seconds()*1000, p99.Seconds()*1000, p99.Seconds()/max(base.Seconds(), 1e-9),
			quantile(s.latencies, 1).Seconds()*1000, len(s.latencies), strings.Join(rounds, " "), s.server.Seconds()/seconds, s.client.Seconds()/seconds, s.others)
	}
}
