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

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"sigs.k8s.io/svm-controller-manager/test/chaos/cluster"
	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/chaos/traffic"
)

const (
	// changeWithin is how long a change is tried while servers are broken.
	changeWithin = 20 * time.Second
	poll         = 500 * time.Millisecond
	// busyWithin is how long a fault waits for a migration to run.
	busyWithin = 8 * time.Second
	busyPoll   = 50 * time.Millisecond
	// busyAtMost is how long a migration has run at most when a fault that waited for it comes.
	busyAtMost = 3 * time.Second
)

// Runner does what plans say.
type Runner struct {
	cluster *cluster.Cluster
	traffic *traffic.Traffic
	logf    func(format string, args ...any)
	backups int
	// changing is held by a change, and by a restore, which no change survives.
	changing sync.Mutex
}

// NewRunner makes one.
func NewRunner(c *cluster.Cluster, t *traffic.Traffic, logf func(format string, args ...any)) *Runner {
	return &Runner{cluster: c, traffic: t, logf: logf}
}

// Run does what the plan says, and returns when nothing is broken any more.
func (r *Runner) Run(ctx context.Context, plan Plan) error {
	start := time.Now()
	var running sync.WaitGroup
	var broken error
	running.Go(func() {
		for _, step := range plan.Faults {
			sleep(ctx, time.Until(start.Add(step.At)))
			if step.Busy {
				r.awaitRewriting(ctx)
				sleep(ctx, time.Duration(step.Dice%uint64(busyAtMost)))
			}
			if ctx.Err() != nil || time.Since(start) > plan.Length {
				return
			}
			if err := r.fault(ctx, step); err != nil {
				broken = errors.Join(broken, err)
			}
		}
	})
	running.Go(func() {
		var last time.Time
		for _, step := range plan.Changes {
			// A change that was late makes the next ones late too. Servers must hear of each one.
			sleep(ctx, max(time.Until(start.Add(step.At)), time.Until(last.Add(leastChange))))
			if ctx.Err() != nil {
				return
			}
			r.change(ctx, step)
			last = time.Now()
		}
	})
	running.Wait()
	return broken
}

// awaitRewriting waits until a migration rewrites objects, but not for long.
func (r *Runner) awaitRewriting(ctx context.Context) {
	for deadline := time.Now().Add(busyWithin); !r.cluster.History.Rewriting() && time.Now().Before(deadline); {
		sleep(ctx, busyPoll)
	}
}

// fault breaks something for some time. An error means that it may be broken still.
func (r *Runner) fault(ctx context.Context, step Step) error {
	f := model.Fault{Kind: step.Kind, Start: time.Now()}
	mend, err := kinds[step.Kind].inject(ctx, r, step.Dice, &f)
	if err != nil {
		f.Error = err.Error()
	}
	r.logf("broken: %s: %s %s", step.Kind, f.Target, f.Error)
	sleep(ctx, time.Until(f.Start.Add(step.For)))
	var broken error
	if mend != nil {
		broken = mend()
	}
	f.End = time.Now()
	r.logf("mended: %s: %s after %.1f s", step.Kind, f.Target, f.End.Sub(f.Start).Seconds())
	if broken != nil {
		broken = fmt.Errorf("mending %s %s: %w", step.Kind, f.Target, broken)
		f.Error += broken.Error()
	}
	r.cluster.History.AddFault(f)
	return broken
}

// change does what an administrator does, who tries again while the cluster is broken, and gives up after some time.
func (r *Runner) change(ctx context.Context, step Step) {
	r.changing.Lock()
	defer r.changing.Unlock()
	f := model.Fault{Kind: step.Kind, Start: time.Now()}
	var err error
	switch step.Kind {
	case flipGears:
		err = r.flip(ctx, model.Gears)
	case flipSprings:
		err = r.flip(ctx, model.Springs)
	case upgrade:
		err = r.upgrade()
	}
	if err != nil {
		f.Error = err.Error()
	}
	f.End = time.Now()
	r.logf("changed: %s in %.1f s %s", step.Kind, f.End.Sub(f.Start).Seconds(), f.Error)
	r.cluster.History.AddFault(f)
}

func (r *Runner) flip(ctx context.Context, resource model.Resource) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, poll, changeWithin, true, func(ctx context.Context) (bool, error) {
		last = r.cluster.Flip(ctx, resource)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// upgrade starts the servers again with the other release, one at a time.
func (r *Runner) upgrade() error {
	var errs []error
	for i := range r.cluster.APIs {
		errs = append(errs, r.cluster.Roll(i))
	}
	return errors.Join(errs...)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
