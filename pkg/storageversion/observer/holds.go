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

package observer

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// holdInterval is how often a request keeps a connection open. API servers close connections after 90 s without one.
const holdInterval = time.Minute

// hold is a connection that is kept.
type hold struct {
	*connection
	who storageversion.Document // see identify
}

// holds keeps a connection to each process whose identity Lease its successor may take over, from the first look on. A
// connection ends with its process, so every restart is noticed.
type holds struct {
	*facts
	clients *clients
	keepers sync.WaitGroup
	byName  sync.Map // of *hold by the names of documents
}

// identify returns a reader of the server at an address, and a document that tells only who answers there: Version,
// Started and Held. It opens a connection to the process, and keeps it, unless it has one.
func (h *holds) identify(
	ctx context.Context, address string, direct bool,
) (from documents.Reader, who storageversion.Document, err error) {
	if held := h.of(address); held != nil {
		return held.reader, held.who, nil
	}
	if from, err = h.clients.reader(address, direct); err != nil {
		return from, who, err
	}
	who.Version, err = from.ServerVersion(ctx)
	if err != nil || !storageversion.LeaseMayOutliveProcess(who.Version) {
		return from, who, err
	}
	one, err := h.clients.connect(ctx, address, direct)
	if err != nil {
		return from, who, err
	}
	if who, err = introduce(ctx, one.reader); err != nil {
		one.close()
		return from, who, err
	}
	h.keep(ctx, address, &hold{one, who})
	return one.reader, who, nil
}

// introduce asks a process for its version, and when it started.
func introduce(ctx context.Context, from documents.Reader) (who storageversion.Document, err error) {
	who.Held = true
	who.Version, err = from.ServerVersion(ctx)
	if err != nil || storageversion.LeaseIdentifiesProcess(who.Version) {
		return who, err
	}
	started, err := readStart(ctx, from)
	if refused(err) {
		klog.FromContext(ctx).Info("An API server below Kubernetes 1.35 does not tell when its process started, so the "+
			"manager cannot know whether it was restarted while no manager ran. Built-in resources are migrated again then. "+
			"Allow the manager to get /metrics", "version", who.Version, "err", err)
		return who, nil
	}
	if err == nil {
		who.Started, err = time.Parse(time.RFC3339Nano, started)
	}
	return who, err
}

// of returns the connection to the process of that name, nil if there is none. It may have ended a moment ago: then
// every request on it fails, and its keeper loses it.
func (h *holds) of(name string) *hold {
	held, _ := h.byName.Load(name)
	one, _ := held.(*hold)
	return one
}

// keep keeps a connection until it ends.
func (h *holds) keep(ctx context.Context, name string, held *hold) {
	h.byName.Store(name, held)
	h.keepers.Go(func() {
		defer utilruntime.HandleCrashWithContext(ctx)
		h.awaitEnd(ctx, held)
		held.close()
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The connection to an API server ended, so it may be restarting", "address", name,
				"version", held.who.Version, "started", held.who.Started)
			h.lose(name, held)
		}
	})
}

// awaitEnd returns when the connection ended, or does not work any more. An API server verifies the client certificate
// of a connection at each request, so it accepts none after that certificate has expired.
func (h *holds) awaitEnd(ctx context.Context, held *hold) {
	ticker := h.clock.NewTicker(holdInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-held.ended:
			return
		case <-ticker.C():
			var answer apierrors.APIStatus
			_, err := held.reader.ServerVersion(ctx)
			if err != nil && !errors.As(err, &answer) || apierrors.IsUnauthorized(err) {
				return // Any other answer, also a refusal, shows that the process at the other end lives.
			}
		}
	}
}

// lose reports once that a connection ended.
func (h *holds) lose(name string, held *hold) {
	if h.byName.CompareAndDelete(name, held) {
		h.update(func(now time.Time) storageversion.Changes { return h.ledger.ConnectionLost(now, name) })
		h.serversChanged.raise()
	}
}
