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
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/bench/contender"
)

const (
	// warmUp is what the other client does before it is measured.
	warmUp = 3 * time.Second
	// startUp is how long after the first rewrite a run is measured.
	startUp = 3 * time.Second
	poll    = 100 * time.Millisecond
)

// figures are those of one run.
type figures struct {
	quiet, during latencies
	perSecond     float64       // objects
	cpu           time.Duration // of the API server for an object, beside what it used in the quiet time
	minutes       []minute
}

type minute struct {
	during    latencies
	perSecond float64
}

// run starts a contender, flips the storage version, and measures the other client before and during the migration.
func (b *bench) run(ctx context.Context, name string, perSecond float64) (f *figures, err error) {
	c, stop, err := b.contenders(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := b.resource.Flip(ctx); err != nil {
		return nil, err
	}
	others, err := startOthers(ctx, b.cp, perSecond)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, others.stop()) }()
	time.Sleep(warmUp)
	began, idle := time.Now(), b.serverCPU()
	time.Sleep(b.quiet)
	ended := time.Now()
	idlePerSecond := float64(b.serverCPU()-idle) / ended.Sub(began).Seconds()

	writes := contender.WatchWrites(ctx, b.cp, b.resource)
	counted, used, err := b.migrate(ctx, c, writes)
	if err != nil {
		return nil, err
	}
	times := writes.End()
	first, _ := slices.BinarySearchFunc(times, counted, time.Time.Compare)
	if times = times[first:]; counted.IsZero() || len(times) == 0 {
		return nil, fmt.Errorf("all was rewritten within %v, take more objects", startUp)
	}
	last := times[len(times)-1]
	lasted := last.Sub(counted).Seconds()
	f = &figures{
		quiet: others.between(began, ended), during: others.between(counted, last), perSecond: float64(len(times)) / lasted,
	}
	f.cpu = time.Duration((float64(used) - idlePerSecond*lasted) / float64(len(times)))
	for from := counted; b.lasting > 0 && from.Add(time.Minute).Before(last); from = from.Add(time.Minute) {
		to := from.Add(time.Minute)
		i, _ := slices.BinarySearchFunc(times, from, time.Time.Compare)
		j, _ := slices.BinarySearchFunc(times, to, time.Time.Compare)
		f.minutes = append(f.minutes, minute{others.between(from, to), float64(j-i) / time.Minute.Seconds()})
	}
	return f, nil
}

// migrate returns from when on the migration is measured, and what the API server used from then on.
func (b *bench) migrate(
	ctx context.Context, c *contender.Contender, writes *contender.Writes,
) (counted time.Time, used time.Duration, err error) {
	if b.lasting > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.lasting+2*startUp)
		defer cancel()
	}
	done := make(chan error, 1)
	go func() { done <- c.Migrate(ctx) }()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			if b.lasting > 0 && errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			return counted, b.serverCPU() - used, err
		case now := <-ticker.C:
			if first := writes.First(); counted.IsZero() && !first.IsZero() && now.Sub(first) >= startUp {
				counted, used = time.Now(), b.serverCPU()
			}
		}
	}
}

func (b *bench) serverCPU() time.Duration {
	usage, err := b.cp.Servers()[0].Process().Usage()
	if err != nil {
		return 0
	}
	return usage.CPU
}

// String is for who watches the bench.
func (f *figures) String() string {
	return fmt.Sprintf("p99 %.1f -> %.1f ms, %.0f objects/s, %.1f ms of CPU for an object",
		f.quiet.ms(0.99), f.during.ms(0.99), f.perSecond, f.cpu.Seconds()*1e3)
}

// results are the runs of each contender at each rate, in the order of the first round.
type results struct {
	runs []*repeated
}

type repeated struct {
	name, rate string
	figures    []*figures
}

func (r *results) add(name, rate string, f *figures) {
	for _, run := range r.runs {
		if run.name == name && run.rate == rate {
			run.figures = append(run.figures, f)
			return
		}
	}
	r.runs = append(r.runs, &repeated{name, rate, []*figures{f}})
}

// print prints the medians of all rounds.
func (r *results) print(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table,
		"others/s\tmigrator\tp50 ms quiet\tduring\tp99 ms quiet\tduring\tduring/quiet\tobjects/s\tserver CPU ms/object\t")
	for _, run := range r.runs {
		of := func(get func(*figures) float64) float64 { return median(run.figures, get) }
		fmt.Fprintf(table, "%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t%.1f\t\n", run.rate, run.name,
			of(func(f *figures) float64 { return f.quiet.ms(0.5) }), of(func(f *figures) float64 { return f.during.ms(0.5) }),
			of(func(f *figures) float64 { return f.quiet.ms(0.99) }), of(func(f *figures) float64 { return f.during.ms(0.99) }),
			of(func(f *figures) float64 { return f.during.ms(0.99) / f.quiet.ms(0.99) }),
			of(func(f *figures) float64 { return f.perSecond }), of(func(f *figures) float64 { return f.cpu.Seconds() * 1e3 }))
	}
	for _, run := range r.runs {
		for _, f := range run.figures {
			for i, m := range f.minutes {
				fmt.Fprintf(table, "%s\t%s\tminute %d\t%.1f\t\t%.1f\t\t%.0f\t\t\n",
					run.rate, run.name, i+1, m.during.ms(0.5), m.during.ms(0.99), m.perSecond)
			}
		}
	}
	return table.Flush()
}

func median(of []*figures, get func(*figures) float64) float64 {
	var values []float64
	for _, f := range of {
		if v := get(f); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	if len(values) == 0 {
		return math.NaN()
	}
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
