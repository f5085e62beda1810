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
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// warmUp is what the other client does before it is measured.
	warmUp = 3 * time.Second
	// startUp is how long after the first rewrite the other client is measured: until then the API server fills the watch
	// cache of a resource whose storage version changed, for which everybody waits, whoever migrates.
	startUp = 3 * time.Second
	// calmShare is how much of a processor an API server uses at most that has nothing to do, and calmPatience how long to
	// wait for that.
	calmShare, calmPatience = 0.1, time.Minute
	// repairers is how many objects are written at a time between two runs, to be as they were.
	repairers = "16"
)

var objectNames = regexp.MustCompile(objectPattern)

// run is one migration by one contender, while it is measured.
type run struct {
	scenario
	w         *widgets
	contender *contender
	others    others
	writes    *writes

	before, quiet, asked, end reading
	// outcome and told are how it ended, and what the migration tells.
	outcome, told string
}

// reading is what processes had used at a moment.
type reading struct {
	at           time.Time
	server, etcd time.Duration
	contender    controlplane.Usage
}

func (r *run) read() (now reading, err error) {
	now.at = time.Now()
	server, err := r.w.cp.Servers()[0].Process().Usage()
	if err != nil {
		return now, err
	}
	etcd, err := r.w.cp.Etcd().Process().Usage()
	if err != nil {
		return now, err
	}
	now.server, now.etcd = server.CPU, etcd.CPU
	now.contender, err = r.contender.usage()
	return now, err
}

// run starts a contender, changes the storage version, and measures the migration. kube-controller-manager runs all the
// time, as it does in clusters. It is started for each run: each change of the definition ends its watches, and it
// would wait longer and longer before it watches again.
func (b *bench) run(ctx context.Context, w *widgets, s scenario, name string) (f figures, err error) {
	controllers, err := w.cp.StartControllerManager(controllersToRun)
	if err != nil {
		return nil, err
	}
	defer func() {
		if controllers.Running() {
			err = errors.Join(err, controllers.Kill())
		}
	}()
	r := &run{scenario: s, w: w}
	if r.contender, err = b.newContender(w, name, controllers); err != nil {
		return nil, err
	}
	if err := r.contender.begin(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.contender.kill()) }()
	if name == inTree { // Its first migration waits until it has a cache of all objects, for a minute or more.
		if err := r.contender.ask(ctx); err != nil {
			return nil, err
		}
		outcome, told, err := r.contender.await(ctx, patience)
		if err != nil {
			return nil, fmt.Errorf("warming up: %w", err)
		}
		if outcome != succeeded {
			return nil, fmt.Errorf("warming up: it ended as %q: %s", outcome, told)
		}
	}
	if _, err := w.flip(ctx); err != nil {
		return nil, err
	}
	if s.denied {
		if err := w.deny(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.migrate(ctx, b.quiet); err != nil {
		return nil, err
	}
	if f, err = r.figures(ctx); err != nil {
		return nil, err
	}
	return f, r.repair(ctx)
}

// migrate measures the servers, and the other client, before and during a migration.
func (r *run) migrate(ctx context.Context, quiet time.Duration) (err error) {
	if err := r.calm(ctx); err != nil {
		return err
	}
	if r.others, err = startOthers(r.w.cp, r.scenario.others); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.others.stop()) }()
	time.Sleep(warmUp)
	if r.before, err = r.read(); err != nil {
		return err
	}
	time.Sleep(quiet)
	if r.quiet, err = r.read(); err != nil {
		return err
	}
	r.writes = r.w.watch(ctx)
	if r.asked, err = r.read(); err != nil {
		return err
	}
	if err := r.contender.ask(ctx); err != nil {
		return fmt.Errorf("asking for a migration: %w", err)
	}
	if r.killed {
		if err := r.restart(ctx); err != nil {
			return err
		}
	}
	within := patience
	if r.denied {
		within = deniedPatience
	}
	if r.outcome, r.told, err = r.contender.await(ctx, within); err != nil {
		return fmt.Errorf("waiting for the end of the migration: %w", err)
	}
	r.end, err = r.read()
	return err
}

// calm waits until the API server does little: after the storage version changed, it fills caches of all objects.
func (r *run) calm(ctx context.Context) error {
	before, err := r.read()
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, calmPatience, false, func(context.Context) (bool, error) {
		now, err := r.read()
		share := (now.server - before.server).Seconds() / now.at.Sub(before.at).Seconds()
		before = now
		return share < calmShare, err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

// restart kills the contender when half of the objects are written, and starts it again.
func (r *run) restart(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(context.Context) (bool, error) {
		return r.writes.count() >= r.w.objects/2, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for half of the objects: %w", err)
	}
	if err := r.contender.kill(); err != nil {
		return err
	}
	return r.contender.begin()
}

// figures are computed when the migration has ended.
func (r *run) figures(ctx context.Context) (figures, error) {
	times := r.writes.end()
	f, n := figures{}, float64(r.w.objects)
	f.put(took, r.end.at.Sub(r.asked.at).Seconds())
	switch r.outcome {
	case succeeded:
		f.put(outcomeShare, 1)
	case failed:
		f.put(outcomeShare, 0)
	}
	f.put(named, float64(len(sets.New(objectNames.FindAllString(r.told, -1)...))))
	f.put(written, float64(len(times))/float64(r.writes.count()))

	// What the servers use anyway is left out.
	idle, lasted := r.quiet.at.Sub(r.before.at).Seconds(), r.end.at.Sub(r.asked.at).Seconds()
	beyond := func(of func(reading) time.Duration) float64 {
		rate := (of(r.quiet) - of(r.before)).Seconds() / idle
		return ((of(r.end) - of(r.asked)).Seconds() - rate*lasted) / n
	}
	f.put(serverCPU, beyond(func(at reading) time.Duration { return at.server })*1e3)
	f.put(etcdCPU, beyond(func(at reading) time.Duration { return at.etcd })*1e3)
	used, before := r.end.contender, r.asked.contender
	f.put(clientCPU, (used.CPU-before.CPU).Seconds()*1e6/n)
	f.put(peakMemory, float64(used.PeakMemory)/(1<<20))
	f.put(received, float64(used.Received-before.Received)/n)
	f.put(sent, float64(used.Sent-before.Sent)/n)
	counts, err := r.w.cp.Requests(controlplane.RequestFilter{
		Since: r.asked.at, Until: r.end.at, Users: []string{r.contender.user},
	})
	if err != nil {
		return nil, err
	}
	f.put(requests, float64(counts.Total())/n)
	if len(times) > 1 {
		first, last := times[0], times[len(times)-1]
		f.put(waited, first.Sub(r.asked.at).Seconds())
		f.put(perSecond, float64(len(times))/last.Sub(first).Seconds())
		r.latencies(f, first.Add(startUp), last)
	}
	return f, r.remains(ctx, f)
}

// latencies are those of the other client, before the migration and from one time to another.
func (r *run) latencies(f figures, from, to time.Time) {
	samples := r.others.samples()
	quiet, during := between(samples, r.before.at, r.quiet.at), between(samples, from, to)
	f.put(quietP50, quantile(quiet, 0.5))
	f.put(duringP50, quantile(during, 0.5))
	f.put(quietP99, quantile(quiet, 0.99))
	f.put(duringP99, quantile(during, 0.99))
	f.put(slower, quantile(during, 0.99)/quantile(quiet, 0.99))
	var minutes []float64 // the p99 of each
	for end := from.Add(time.Minute); end.Before(to); end = end.Add(time.Minute) {
		minutes = append(minutes, quantile(between(samples, end.Add(-time.Minute), end), 0.99))
	}
	first, measured := spreadOf(minutes[:len(minutes)/2])
	second, _ := spreadOf(minutes[len(minutes)/2:])
	if measured {
		f.put(drift, second.median/first.median)
	}
}

// remains counts what is stored in the old encoding, and whether the definition still knows of it.
func (r *run) remains(ctx context.Context, f figures) error {
	remaining, err := r.w.left(ctx)
	if err != nil {
		return err
	}
	f.put(left, float64(remaining))
	f.put(forgotten, 0)
	pruned, err := r.w.onlyCurrentListed(ctx)
	if pruned {
		f.put(forgotten, float64(remaining))
	}
	return err
}

// repair ends the contender, and lets the next run find all objects in one encoding.
func (r *run) repair(ctx context.Context) error {
	if err := errors.Join(r.contender.kill(), r.contender.forget(ctx)); err != nil || !r.denied {
		return err
	}
	if err := r.w.allow(ctx); err != nil {
		return err
	}
	naked := newNaked(r.w, repairers)
	if err := naked.ask(ctx); err != nil {
		return err
	}
	_, _, err := naked.await(ctx, patience)
	return errors.Join(err, naked.kill())
}
