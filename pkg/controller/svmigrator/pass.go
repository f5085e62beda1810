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

package svmigrator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

const (
	// A request that failed in a way that may pass is repeated after minRetry, doubling up to maxRetry.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second

	// An object that the API server fails on is set aside after that many failures in that time, if there are few of them and others of the chunk
	// are done, and tried once more when all others are. More is an outage, as of a webhook, and waited for; but not longer than outageAtMost, or
	// what fails for good would hold up all that comes after it.
	failuresToSetAside = 8
	timeToSetAside     = 2 * time.Minute
	mostToSetAside     = 10
	outageAtMost       = 30 * time.Minute

	// vanishPatience is how long a server may say that it does not serve a resource which was seen to be served, or that we may not list
	// it: one that has just started says so for a moment.
	vanishPatience = 15 * time.Second

	// A migration in which nothing came about for stuckAfter, which is longer than any request takes, makes room for others that wait, and
	// comes back after stuckRest.
	stuckAfter = listTimeout + 5*time.Second
	stuckRest  = 30 * time.Second
)

// errStuck ends the turn of a migration in which nothing comes about, while others wait.
var errStuck = errors.New("nothing came about for a while, and others wait")

// endedError says that a migration cannot go on, and is not a failure of the program.
type endedError struct {
	reason, message string
}

func (e *endedError) Error() string { return e.reason + ": " + e.message }

// pass drives one sweep: it sends what the sweep asks for, and tells it what came of that.
type pass struct {
	sweep *sweep.Sweep
	clock clock.WithTicker
	lane  *pacer.Lane
	// list returns the chunk behind a token.
	list func(ctx context.Context, token string) (sweep.Chunk, error)
	// rewrite rewrites one object. It is called by many goroutines at once.
	rewrite func(ctx context.Context, object *sweep.Object) attempt
	// save stores the position behind a chunk that is done. It returns when that is stored, or an error that ends the pass.
	save func(ctx context.Context, position sweep.Position) error
	// observed is told of every outcome, once.
	observed func(object *sweep.Object, a attempt)
	// tell makes known what requests fail with, nil if they do not any more. It says whether that is known now.
	tell func(ctx context.Context, t *trouble) bool
	// served says whether the resource was last seen to be served.
	served func() bool
	// last says that there is no further try for what this pass sets aside, so that nothing is gained by waiting for others.
	last bool
	// othersWait says whether other migrations wait for this one's place.
	othersWait func() bool

	attempts chan attempt
	lists    chan listing
	listAt   time.Time // when the next list may be sent
	listFail int       // how often it failed in a row
	restart  bool
	restarts int
	flying   int
	// cameAbout is when an object got its outcome last, or a list its answer; stuck that this is too long ago.
	cameAbout time.Time
	stuck     bool
	// listing and rewriting are what requests fail with that may be answered otherwise later.
	listing, rewriting trouble
	// vanishing is since when the resource is said not to be served, or not to be listed by us.
	vanishing time.Time
	told      bool
}

// attempt is what came of one request about an object.
type attempt struct {
	object  *sweep.Object
	outcome sweep.Outcome // empty if there is none yet
	failure failure       // if there is none, or the object was denied
	latency time.Duration // of a rewrite that did all there is to do, else zero
}

// result is what the pacer learns of it.
func (a attempt) result() pacer.Result {
	r := pacer.Result{Latency: a.latency}
	switch a.failure.kind {
	case overloaded:
		r.Signal, r.RetryAfter = pacer.Overloaded, a.failure.retryAfter
	case unreachable, unauthenticated:
		r.Signal = pacer.Unreachable
	case interrupted:
		r.Signal = pacer.Abandoned
	}
	return r
}

// run returns nil when every object has its outcome and that is stored. Nothing of it runs when it returns.
func (p *pass) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	p.attempts, p.lists = make(chan attempt), make(chan listing, 1)
	work := make(chan *sweep.Object)
	var running sync.WaitGroup
	running.Go(func() { p.dispatch(ctx, work, &running) })
	defer func() {
		cancel()
		p.drain()
		running.Wait()
	}()
	ticker := p.clock.NewTicker(troublePeriod)
	defer ticker.Stop()
	p.cameAbout = p.clock.Now()
	for {
		if err := p.advance(ctx); err != nil || p.sweep.Complete() {
			return err
		}
		p.startList(ctx, &running)
		now := p.clock.Now()
		var offer chan<- *sweep.Object
		object := p.sweep.Next(now)
		if object != nil {
			offer = work
		}
		wake := p.timer(now)
		var err error
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case offer <- object:
			p.sweep.Take(object, now)
			p.flying++
		case a := <-p.attempts:
			err = p.attempted(ctx, a)
		case l := <-p.lists:
			err = p.listed(ctx, l)
		case <-ticker.C():
			long := p.clock.Since(p.cameAbout) >= stuckAfter
			p.stuck = p.stuck || long
			if p.tellTrouble(ctx); long && p.othersWait() {
				err = errStuck
			}
		case <-wake.C():
		}
		wake.Stop()
		if err != nil {
			return err
		}
	}
}

// dispatch sends objects as fast as the pacer lets it.
func (p *pass) dispatch(ctx context.Context, work <-chan *sweep.Object, running *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case object := <-work:
			place, err := p.lane.Acquire(ctx)
			if err != nil {
				p.attempts <- attempt{object: object, failure: failure{kind: interrupted}}
				return
			}
			running.Go(func() {
				a := p.rewrite(ctx, object)
				place.Release(a.result())
				p.attempts <- a
			})
		}
	}
}

// drain takes in what is on its way when the pass ends: an answer that came counts, whatever ended it.
func (p *pass) drain() {
	for p.flying > 0 {
		a := <-p.attempts
		p.flying--
		if a.outcome != "" {
			p.done(a)
		} else {
			p.sweep.Return(a.object)
		}
	}
	p.sweep.ListFailed()
}

// advance goes behind chunks that are done.
func (p *pass) advance(ctx context.Context) error {
	for {
		position, done := p.sweep.ChunkDone()
		if p.restart && p.sweep.Unfinished() == 0 {
			p.restart = false
			return p.sweep.Restart()
		}
		if !done {
			return nil
		}
		if err := p.save(ctx, position); err != nil {
			return err
		}
		p.sweep.Advance()
	}
}

func (p *pass) attempted(ctx context.Context, a attempt) error {
	p.flying--
	if a.outcome != "" {
		p.done(a)
		p.vanishing = time.Time{}
		return nil
	}
	if a.failure.kind == interrupted {
		p.sweep.Return(a.object)
		return nil
	}
	if err := p.ends(a.failure); err != nil {
		p.sweep.Return(a.object)
		return err
	}
	now := p.clock.Now()
	if a.failure.kind == internal {
		if a.object.Failures++; a.object.FailingSince.IsZero() {
			a.object.FailingSince = now
		}
		if p.setsAside(a.object, now) {
			a.outcome = sweep.Denied
			p.done(a)
			return nil
		}
	}
	next := now.Add(max(backoff(a.object.Tries+1), a.failure.retryAfter))
	p.sweep.Retry(a.object, next)
	retriedRequests.WithLabelValues(string(a.failure.kind)).Inc()
	p.rewriting.example = klog.KRef(a.object.Namespace, a.object.Name).String()
	p.rewriting.failure, p.rewriting.next = a.failure, next
	klog.FromContext(ctx).V(4).Info("Rewriting failed, will retry", "object", klog.KRef(a.object.Namespace, a.object.Name), "failure", a.failure.inShort(), "next", next)
	return nil
}

func (p *pass) done(a attempt) {
	p.cameAbout, p.stuck = p.clock.Now(), false
	p.sweep.Done(a.object, a.outcome, sweep.Denial{Reason: a.failure.reason, Message: a.failure.message})
	p.observed(a.object, a)
}

// setsAside says that the API server failed on this object for so long that others shall not wait for it any more.
func (p *pass) setsAside(object *sweep.Object, now time.Time) bool {
	failing := now.Sub(object.FailingSince)
	if object.Failures < failuresToSetAside || failing < timeToSetAside {
		return false
	}
	few := p.sweep.Unfinished() <= mostToSetAside && p.sweep.Stored() > 0
	return few || p.last || failing >= outageAtMost
}

// ends says whether a failure ends the migration.
func (p *pass) ends(f failure) error {
	switch f.kind {
	case unsupported:
		return &endedError{migrationv1alpha1.MigrationReasonVerbsNotSupported, fmt.Sprintf("The API server does not rewrite objects of the resource in the way that a migration does: %s", f.inShort())}
	case refused:
		if !p.awaited() {
			return &endedError{migrationv1alpha1.MigrationReasonListRefused, fmt.Sprintf("The API server refuses to list the objects: %s", f.inShort())}
		}
	case resourceGone:
		if !p.served() || !p.awaited() {
			return &endedError{migrationv1alpha1.MigrationReasonResourceNotServed, fmt.Sprintf("The resource is not served any more: %s", f.inShort())}
		}
	}
	return nil
}

// awaited says that what a server that has just started says has not been said for too long.
func (p *pass) awaited() bool {
	now := p.clock.Now()
	if p.vanishing.IsZero() {
		p.vanishing = now
	}
	return now.Sub(p.vanishing) < vanishPatience
}

// timer fires when something is due.
func (p *pass) timer(now time.Time) clock.Timer {
	wait := time.Minute
	for _, at := range []time.Time{p.sweep.Wake(), p.listAt} {
		if until := at.Sub(now); !at.IsZero() && until > 0 {
			wait = min(wait, until)
		}
	}
	return p.clock.NewTimer(wait)
}

// backoff is the time before try n, which is at least 1, with half of it left to chance so that what failed together
// does not come back together.
func backoff(n int) time.Duration {
	full := min(maxRetry, minRetry<<min(n-1, 10))
	return full/2 + rand.N(full/2)
}
