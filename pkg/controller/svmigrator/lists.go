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
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// maxRestarts is how often a list may have to begin anew. A server that takes none of its own tokens can be listed by nobody.
const maxRestarts = 5

// listing is what came of one list.
type listing struct {
	chunk sweep.Chunk
	err   error
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
		p.cameAbout, p.stuck = p.clock.Now(), false
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
