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

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// keepAliveInterval is how often a request keeps a connection open. API servers close connections after 90 s without
// one.
const keepAliveInterval = time.Minute

// keepAliveTimeout bounds that request. By default, a busy API server lets a request wait for 15 s.
const keepAliveTimeout = 30 * time.Second

// shortLife is how long after its begin the end of a connection causes a look at the earliest.
const shortLife = 5 * time.Second

// keptConnections keeps a connection to each process whose identity Lease its successor may take over, from the first
// look on. A connection ends with its process, so every restart is noticed.
type keptConnections struct {
	*sharedLedger
	clients *clients
	keepers sync.WaitGroup
	byName  sync.Map // of *connection by the names of documents
}

// identify returns a reader of the server at an address, and a document that tells only who answers there: Version,
// Started and Connected. It opens a connection to the process, and keeps it, unless it has one.
func (k *keptConnections) identify(
	ctx context.Context, address string, direct bool,
) (from documents.Reader, who storageversion.Document, err error) {
	if kept := k.find(address); kept != nil {
		return kept.reader, kept.who, nil
	}
	if from, err = k.clients.reader(address, direct); err != nil {
		return from, who, err
	}
	who.Version, err = from.ServerVersion(ctx)
	if err != nil || !storageversion.LeaseMayOutliveProcess(who.Version) {
		return from, who, err
	}
	one, err := k.clients.connect(ctx, address, direct)
	if err != nil {
		return from, who, err
	}
	if one.who, err = readVersionAndStart(ctx, one.reader); err != nil {
		one.close()
		return from, one.who, err
	}
	k.keep(ctx, address, one)
	return one.reader, one.who, nil
}

// readVersionAndStart asks a process for its version, and when it started.
func readVersionAndStart(ctx context.Context, from documents.Reader) (who storageversion.Document, err error) {
	who.Connected = true
	who.Version, err = from.ServerVersion(ctx)
	if err != nil || storageversion.LeaseIdentifiesProcess(who.Version) {
		return who, err
	}
	who.Started, err = readStart(ctx, from)
	if isLasting(err) {
		klog.FromContext(ctx).Info("An API server below Kubernetes 1.35 does not tell when its process started. So all "+
			"built-in resources are migrated again whenever a manager starts or becomes the leader. Allow the manager to get "+
			"/metrics", "version", who.Version, "err", err)
		return who, nil
	}
	return who, err
}

// find returns the connection to the process of that name, nil if there is none. It may have ended a moment ago: then
// every request on it fails, and its keeper forgets it.
func (k *keptConnections) find(name string) *connection {
	loaded, _ := k.byName.Load(name)
	kept, _ := loaded.(*connection)
	return kept
}

// keep keeps a connection to a process that has none until it ends, and tells the Ledger of the end.
func (k *keptConnections) keep(ctx context.Context, name string, kept *connection) {
	k.byName.Store(name, kept)
	began := k.clock.Now()
	k.keepers.Go(func() {
		defer utilruntime.HandleCrashWithContext(ctx)
		k.awaitEnd(ctx, kept)
		kept.close()
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The connection to an API server ended, so it may be restarting", "address", name,
				"version", kept.who.Version, "started", kept.who.Started)
			k.byName.Delete(name)
			k.update(func(now time.Time) storageversion.Changes { return k.ledger.ConnectionLost(now, name) })
			// A proxy may end each connection at once, and each look makes another one.
			if retry.Sleep(ctx, k.clock, shortLife-k.clock.Since(began)) {
				k.serversChanged.raise()
			}
		}
	})
}

// awaitEnd returns when the connection ended, or does not work any more. An API server verifies the client certificate
// of a connection at each request, so it accepts none after that certificate has expired.
func (k *keptConnections) awaitEnd(ctx context.Context, kept *connection) {
	ticker := k.clock.NewTicker(keepAliveInterval)
	defer ticker.Stop()
	patient := kept.reader
	patient.Timeout, patient.Retries = keepAliveTimeout, 0 // A retry would wait as long as a busy server asks for.
	for {
		select {
		case <-ctx.Done():
			return
		case <-kept.ended:
			return
		case <-ticker.C():
			var answer apierrors.APIStatus
			_, err := patient.ServerVersion(ctx)
			if err != nil && !errors.As(err, &answer) || apierrors.IsUnauthorized(err) {
				return // Any other answer, also a refusal, shows that the process at the other end lives.
			}
		}
	}
}
