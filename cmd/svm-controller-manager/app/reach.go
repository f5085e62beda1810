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

package app

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// requestTimeout bounds one look: an API server that takes a connection and says nothing is not there.
	requestTimeout = 5 * time.Second

	firstLook = time.Second
	// An API server or a CRD that is missing is waited for by somebody.
	longestLook = 10 * time.Second
	// An API that need not be there appears when an API server is restarted with other flags.
	longestOptionalLook = 2 * time.Minute

	// unservedReminder is how often an API that was served and is no more is told of.
	unservedReminder = time.Hour
)

// unreachable says whether err means that the API server did not answer the question, as opposed to answering no.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == 0
}

// waitForAPIServer returns when the API server is ready to serve, or with an error when ctx ends.
func waitForAPIServer(ctx context.Context, client kubernetes.Interface, host string) error {
	var waiting rowLogger
	return look(ctx, longestLook, func(ctx context.Context) bool {
		err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		switch {
		case err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			waiting.done(ctx, "The API server answers", "host", host)
			return true
		case apierrors.IsUnauthorized(err):
			waiting.log(ctx, "Waiting: the API server refuses the credentials; check those of --kubeconfig or of the service account", "host", host, "err", err)
		default:
			waiting.log(ctx, "Waiting for the API server to become ready; if it is up, check the address in --kubeconfig", "host", host, "err", err)
		}
		return false
	})
}

// waitForNeed returns when the resource is served, or with an error when ctx ends.
func waitForNeed(ctx context.Context, client discovery.DiscoveryInterface, need Need, found func()) error {
	longest := longestLook
	if need.Optional {
		longest = longestOptionalLook
	}
	var waiting rowLogger
	return look(ctx, longest, func(ctx context.Context) bool {
		served, err := isServed(ctx, client, need)
		if served {
			waiting.done(ctx, "The resource is served now", "resource", need.String())
			found()
			return true
		}
		switch {
		case err != nil:
			waiting.log(ctx, "Waiting for a resource: the API server could not be asked", "resource", need.String(), "err", err)
		case need.Optional:
			waiting.log(ctx, "The resource is not served, so there is nothing to do until it is", "resource", need.String())
		default:
			waiting.log(ctx, "Waiting for a resource to be served: is its CustomResourceDefinition installed?", "resource", need.String())
		}
		return false
	})
}

// rowLogger logs the first of a row of equal messages, and the end of the row. Another message is a new row: what is wrong
// may change while one waits.
type rowLogger struct{ last string }

func (r *rowLogger) log(ctx context.Context, message string, keysAndValues ...any) {
	if r.last != message {
		klog.FromContext(ctx).WithCallDepth(1).Info(message, keysAndValues...)
	}
	r.last = message
}

func (r *rowLogger) done(ctx context.Context, message string, keysAndValues ...any) {
	if r.last != "" {
		klog.FromContext(ctx).WithCallDepth(1).Info(message, keysAndValues...)
	}
	r.last = ""
}

// tellWhileUnserved returns a watch error handler for a resource that a cluster may stop serving: it tells so now and
// then, where the default one logs an error at every try.
func tellWhileUnserved(clock clock.PassiveClock) cache.WatchErrorHandlerWithContext {
	var (
		mu   sync.Mutex
		told time.Time
	)
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if told.IsZero() || clock.Since(told) > unservedReminder {
			told = clock.Now()
			klog.FromContext(ctx).Info("The API server has stopped serving a resource; waiting for it to come back", "resource", r.TypeDescription())
		}
	}
}

func isServed(ctx context.Context, client discovery.DiscoveryInterface, need Need) (bool, error) {
	gv := need.Resource.GroupVersion()
	list, err := discovery.ToDiscoveryInterfaceWithContext(client).ServerResourcesForGroupVersionWithContext(ctx, gv.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discovering %s: %w", gv, err)
	}
	for _, resource := range list.APIResources {
		if resource.Name == need.Resource.Resource {
			return true, nil
		}
	}
	return false, nil
}

// look calls question at growing intervals until the answer is yes or ctx ends.
func look(ctx context.Context, longest time.Duration, question func(context.Context) bool) error {
	for interval := firstLook; ; interval = min(2*interval, longest) {
		asking, cancel := context.WithTimeout(ctx, requestTimeout)
		yes := question(asking)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if yes {
			return nil
		}
		// Some jitter, for several managers start when an API server comes back.
		if err := pause(ctx, interval+rand.N(interval/5)); err != nil {
			return err
		}
	}
}

// pause returns after d, or with an error when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
