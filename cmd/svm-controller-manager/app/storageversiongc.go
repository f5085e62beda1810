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
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/storageversiongc"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

func newStorageVersionGCDescriptor() ControllerDescriptor {
	storageVersions := apiserverinternalv1alpha1.SchemeGroupVersion.WithResource("storageversions")
	return ControllerDescriptor{
		Name:         names.StorageVersionGarbageCollectorController,
		Aliases:      []string{"storageversiongc"},
		FeatureGates: []featuregate.Feature{features.StorageVersionGarbageCollector},
		// The StorageVersion API is alpha. Most clusters do not serve it and have no garbage.
		Needs: []Need{{Resource: storageVersions, Optional: true}},
		New: func(ctx context.Context, c ControllerContext) (Controller, error) {
			storageVersions := c.Informers.Internal().V1alpha1().StorageVersions()
			// A running informer takes no new handler. Then errors are logged while the API is not served.
			_ = storageVersions.Informer().SetWatchErrorHandlerWithContext(newUnservedHandler(clock.RealClock{}))
			return storageversiongc.New(ctx, c.Client, c.IdentityLeases, storageVersions, clock.RealClock{})
		},
	}
}

// newUnservedHandler returns a watch error handler for a resource that a cluster may stop serving. It logs that once
// each time, and at most once a minute, where the default handler would log an error at every try. The resource version
// of a reflector changes only while the resource is served.
func newUnservedHandler(clk clock.PassiveClock) cache.WatchErrorHandlerWithContext {
	var version string
	var logged time.Time
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			logger := klog.FromContext(ctx)
			if now := clk.Now(); version != r.LastSyncResourceVersion() && now.Sub(logged) >= time.Minute {
				version, logged = r.LastSyncResourceVersion(), now
			} else {
				logger = logger.V(4)
			}
			logger.Info("The API server has stopped serving a resource; waiting for it to come back",
				"resource", r.TypeDescription())
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}
}
