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
	"slices"
	"time"

	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	// troublePeriod is how often it is looked at whether there is anything to tell about requests that fail.
	troublePeriod = time.Second
	// troubleThreshold is how long an object must have been tried for that to be worth telling.
	troubleThreshold = 5 * time.Second
	// tellTimeout bounds how long a pass stands still to tell of its troubles, tellPeriod how often it does.
	tellTimeout = 2 * time.Second
	tellPeriod  = 15 * time.Second
)

// trouble is that requests fail in a way that may pass.
type trouble struct {
	// what fails, in words.
	what string
	// example is an object of which that is so, empty if it is not about objects.
	example string
	failure failure
	since   time.Time
	next    time.Time
	// stuck says that nothing came about for long.
	stuck bool
}

func (t *trouble) String() string {
	answer := t.failure.inShort()
	if t.example != "" {
		answer = t.example + ": " + answer
	}
	return fmt.Sprintf("%s since %s, the next try is at %s: %s", t.what, t.since.UTC().Format(time.RFC3339), t.next.UTC().Format(time.RFC3339), answer)
}

// tellTrouble makes known what lasts for more than a moment, and when it is over.
func (p *pass) tellTrouble(ctx context.Context) {
	objects, since := p.sweep.Waiting()
	switch {
	case objects > 0 && p.rewriting.failure.kind != "" && p.clock.Since(since) > troubleThreshold:
		t := p.rewriting
		t.stuck = p.stuck
		t.what, t.since, t.next = fmt.Sprintf("Rewriting fails for %d objects", objects), since, p.sweep.Wake()
		p.tell(ctx, &t)
		p.told = true
	case p.listFail > 0:
		t := p.listing
		t.stuck = p.stuck
		t.what = "Listing the next objects fails"
		p.tell(ctx, &t)
		p.told = true
	case objects == 0 && p.told:
		p.told = !p.tell(ctx, nil)
	}
}

// tellTrouble says in the status what requests fail with, and whether that stands there now. It is not repeated at once: what cannot be told
// now is told again.
func (t *turn) tellTrouble(ctx context.Context, trouble *trouble) bool {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	now := t.clock.Now()
	text := t.phase
	if trouble != nil {
		text = phase{migrationv1alpha1.MigrationReasonRetrying, trouble.String()}
		if trouble.stuck {
			text.reason = migrationv1alpha1.MigrationReasonNoProgress
		}
		if !t.troubled {
			klog.FromContext(ctx).Info("Requests fail and are repeated", "what", trouble.what, "since", trouble.since, "failure", trouble.failure.inShort())
		}
	}
	t.troubled = trouble != nil
	before := runningCondition(&t.journal.stored.Status)
	switch {
	case before.Reason == text.reason && (trouble == nil || now.Sub(before.LastUpdateTime.Time) < tellPeriod):
		return true
	case now.Before(t.tellAgain):
		return false
	}
	change := func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		running(status, now, text.reason, text.message)
	}
	err := t.journal.write(ctx, change)
	if errors.Is(err, errOutdated) {
		if err = t.journal.refresh(ctx); err == nil {
			err = t.journal.write(ctx, change)
		}
	}
	if err != nil {
		t.tellAgain = now.Add(tellPeriod)
		klog.FromContext(ctx).V(2).Info("Telling of failing requests failed, will retry", "err", err)
	}
	return err == nil
}

func runningCondition(status *migrationv1alpha1.StorageVersionMigrationStatus) migrationv1alpha1.MigrationCondition {
	i := slices.IndexFunc(status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Type == migrationv1alpha1.MigrationRunning
	})
	if i < 0 {
		return migrationv1alpha1.MigrationCondition{}
	}
	return status.Conditions[i]
}
