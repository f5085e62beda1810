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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	// An object that the API server fails on is set aside after that many failures in that time, if others can still be written,
	// and tried once more when all others are done. A server that fails on all objects is waited for.
	failuresToSetAside = 8
	timeToSetAside     = 2 * time.Minute

	// vanishPatience is how long a server may say that it does not serve a resource which was seen to be served: one that
	// has just started says so for a moment.
	vanishPatience = 15 * time.Second

	// troublePeriod is how often it is looked at whether there is anything to tell about requests that fail.
	troublePeriod = time.Second
	// troubleThreshold is how long an object must have been tried for that to be worth telling.
	troubleThreshold = 5 * time.Second

	// A migration in which nothing came about for stuckAfter, which is longer than any request takes, makes room for others that wait, and
	// comes back after stuckRest.
	stuckAfter = patchTimeout + 5*time.Second
	stuckRest  = 30 * time.Second

	// maxRestarts is how often a list may have to begin anew. A server that takes none of its own tokens can be listed by nobody.
	maxRestarts = 5
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
	// works says whether an object that was rewritten before can be written at this time.
	works func(ctx context.Context, known *sweep.Object) bool
	// othersWait says whether other migrations wait for this one's place.
	othersWait func() bool

	attempts chan attempt
	lists    chan listing
	listAt   time.Time // when the next list may be sent
	listFail int       // how often it failed in a row
	restart  bool
	restarts int
	flying   int
	// cameAbout is when an object got its outcome last, or a list its answer.
	cameAbout time.Time
	// known is an object that was rewritten.
	known *sweep.Object
	// listing and rewriting are what requests fail with that may be answered otherwise later.
	listing, rewriting trouble
	// vanishing is since when the resource is said not to be served.
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

type listing struct {
	chunk sweep.Chunk
	err   error
}

// trouble is that requests fail in a way that may pass.
type trouble struct {
	// what fails, in words.
	what string
	// example is an object of which that is so, empty if it is not about objects.
	example string
	failure failure
	since   time.Time
	next    time.Time
}

func (t *trouble) String() string {
	answer := t.failure.inShort()
	if t.example != "" {
		answer = t.example + ": " + answer
	}
	return fmt.Sprintf("%s since %s, the next try is at %s: %s", t.what, t.since.UTC().Format(time.RFC3339), t.next.UTC().Format(time.RFC3339), answer)
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
			if p.tellTrouble(ctx); p.clock.Since(p.cameAbout) >= stuckAfter && p.othersWait() {
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

func (p *pass) startList(ctx context.Context, running *sync.WaitGroup) {
	if p.restart || p.clock.Now().Before(p.listAt) {
		return
	}
	token, wanted := p.sweep.List()
	if !wanted {
		return
	}
	running.Go(func() {
		chunk, err := p.list(ctx, token)
		p.lists <- listing{chunk: chunk, err: err}
	})
}

func (p *pass) listed(ctx context.Context, l listing) error {
	if l.err == nil {
		p.listFail, p.listing, p.vanishing = 0, trouble{}, time.Time{}
		p.cameAbout = p.clock.Now()
		p.sweep.Listed(l.chunk)
		return nil
	}
	f := classify(l.err, "")
	switch f.kind {
	case tokenExpired:
		klog.FromContext(ctx).V(2).Info("Continue token expired", "continues", f.token != "")
		if f.token != "" {
			p.sweep.ListExpired(f.token)
			return nil
		}
		return p.beginAnew(f)
	case refused:
		if token := p.sweep.Token(); token != "" && f.reason == metav1.StatusReasonBadRequest {
			klog.FromContext(ctx).Info("The API server does not take the continue token, listing from the beginning", "token", token, "answer", f.inShort())
			return p.beginAnew(f)
		}
		p.sweep.ListFailed()
	case interrupted:
		p.sweep.ListFailed()
		return nil
	default:
		p.sweep.ListFailed()
	}
	if err := p.ends(f); err != nil {
		return err
	}
	p.listAgain(f)
	klog.FromContext(ctx).V(4).Info("Listing failed, will retry", "failure", f.inShort(), "next", p.listAt)
	return nil
}

// beginAnew has the list begin anew when nothing is in flight.
func (p *pass) beginAnew(f failure) error {
	p.sweep.ListFailed()
	if p.restarts++; p.restarts > maxRestarts {
		return &endedError{migrationv1alpha1.MigrationReasonListRefused, fmt.Sprintf("The API server does not go on with lists that it began: %s", f.inShort())}
	}
	p.restart = true
	p.listAgain(f)
	return nil
}

// listAgain has the list repeated after a while.
func (p *pass) listAgain(f failure) {
	now := p.clock.Now()
	p.listFail++
	p.listAt = now.Add(max(backoff(p.listFail), f.retryAfter))
	if p.listing.since.IsZero() {
		p.listing.since = now
	}
	p.listing.failure, p.listing.next = f, p.listAt
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
		if p.setsAside(ctx, a.object, now) {
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
	p.cameAbout = p.clock.Now()
	if a.outcome == sweep.Rewritten || a.outcome == sweep.AlreadyCurrent {
		p.known = a.object
	}
	p.sweep.Done(a.object, a.outcome, sweep.Denial{Reason: a.failure.reason, Message: a.failure.message})
	p.observed(a.object, a)
}

// setsAside says that the API server fails on this object and not on others, for so long that these shall not wait for it any more.
func (p *pass) setsAside(ctx context.Context, object *sweep.Object, now time.Time) bool {
	return object.Failures >= failuresToSetAside && now.Sub(object.FailingSince) >= timeToSetAside && p.known != nil && p.works(ctx, p.known)
}

// ends says whether a failure ends the migration.
func (p *pass) ends(f failure) error {
	switch f.kind {
	case unsupported:
		return &endedError{migrationv1alpha1.MigrationReasonVerbsNotSupported, fmt.Sprintf("The API server does not rewrite objects of the resource in the way that a migration does: %s", f.inShort())}
	case refused:
		return &endedError{migrationv1alpha1.MigrationReasonListRefused, fmt.Sprintf("The API server refuses to list the objects: %s", f.inShort())}
	case resourceGone:
		now := p.clock.Now()
		if p.vanishing.IsZero() {
			p.vanishing = now
		}
		if !p.served() || now.Sub(p.vanishing) >= vanishPatience {
			return &endedError{migrationv1alpha1.MigrationReasonResourceNotServed, fmt.Sprintf("The resource is not served any more: %s", f.inShort())}
		}
	}
	return nil
}

// tellTrouble makes known what lasts for more than a moment, and when it is over.
func (p *pass) tellTrouble(ctx context.Context) {
	objects, since := p.sweep.Waiting()
	switch {
	case objects > 0 && p.clock.Since(since) > troubleThreshold:
		t := p.rewriting
		t.what, t.since, t.next = fmt.Sprintf("Rewriting fails for %d objects", objects), since, p.sweep.Wake()
		p.tell(ctx, &t)
		p.told = true
	case p.listFail > 0:
		t := p.listing
		t.what = "Listing the next objects fails"
		p.tell(ctx, &t)
		p.told = true
	case objects == 0 && p.told:
		p.told = !p.tell(ctx, nil)
	}
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
