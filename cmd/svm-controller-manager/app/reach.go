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
	"math"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/definition"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
)

const (
	// requestTimeout bounds the requests of one attempt. An API server that accepts a connection and then says nothing
	// counts as down.
	requestTimeout = 5 * time.Second

	// The manager asks again after firstInterval, and then after twice as long each time, up to one of the other two.
	firstInterval = time.Second
	// An administrator is waiting for an API server or a CRD that is missing.
	longestInterval = 10 * time.Second
	// An optional API appears only when somebody restarts an API server with other flags.
	longestOptionalInterval = 2 * time.Minute
)

// waitForAPIServer returns when the API server is ready to serve, or with an error when ctx ends.
func waitForAPIServer(ctx context.Context, client kubernetes.Interface, host string) error {
	var failures retry.Streak
	return askUntil(ctx, longestInterval, func(ctx context.Context) bool {
		err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		switch {
		case err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			failures.Succeeded(ctx, "The API server answers", "host", host)
			return true
		case apierrors.IsUnauthorized(err):
			failures.Failed(ctx, "unauthorized", "Waiting: the API server refuses the credentials; "+
				"check those of --kubeconfig or of the service account", "host", host, "err", err)
		default:
			failures.Failed(ctx, "not ready", "Waiting for the API server to become ready; "+
				"if it is up, check the address, the CA, the proxy and the credential plugin in the configuration of the manager",
				"host", host, "err", err)
		}
		return false
	})
}

// waitForNeed returns when the API server serves the resource as it is needed, or with an error when ctx ends. It
// stores what each answer says in isServed.
func waitForNeed(
	ctx context.Context, client discovery.DiscoveryInterfaceWithContext, need Need, isServed *atomic.Bool,
) error {
	longest := longestInterval
	if need.Optional {
		longest = longestOptionalInterval
	}
	var failures retry.Streak
	told := false
	return askUntil(ctx, longest, func(ctx context.Context) bool {
		served, missing, err := definition.Check(ctx, client, need.Resource)
		fits := served && missing == ""
		if err == nil {
			isServed.Store(fits)
		}
		switch {
		case fits:
			failures.Succeeded(ctx, "The resource is served now", "resource", need.String())
		case err != nil:
			failures.Failed(ctx, "unanswered", "Waiting for a resource: asking the API server for it failed",
				"resource", need.String(), "err", err)
		case need.Optional && told: // It is no failure, which the log would repeat.
		case need.Optional:
			told = true
			klog.FromContext(ctx).Info("The resource is not served; the controller starts when it is",
				"resource", need.String())
		case served:
			failures.Failed(ctx, "another", "Waiting: the CustomResourceDefinition of a resource lacks a field, so it is "+
				"another project's or too old; apply the one of this release", "resource", need.String(), "field", missing)
		default:
			failures.Failed(ctx, "missing", "Waiting for a resource to be served; "+
				"check that its CustomResourceDefinition is installed", "resource", need.String())
		}
		return fits
	})
}

// askUntil asks at growing intervals until the answer is yes, or returns an error when ctx ends.
func askUntil(ctx context.Context, longest time.Duration, ask func(context.Context) bool) error {
	// With jitter, because several managers start asking when an API server comes back.
	intervals := wait.Backoff{Duration: firstInterval, Factor: 2, Jitter: 0.2, Steps: math.MaxInt, Cap: longest}
	return intervals.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return ask(ctx), nil
	})
}
