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
	"fmt"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/metrics/prometheus/slis"
	zpagesfeatures "k8s.io/component-base/zpages/features"
	genericcontrollermanager "k8s.io/controller-manager/app"
	controllerhealthz "k8s.io/controller-manager/pkg/healthz"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

// serve opens the secure port. The returned channel is closed when the port is.
func serve(ctx context.Context, c *options.Config, health *health) (<-chan struct{}, error) {
	if c.SecureServing == nil {
		closed := make(chan struct{})
		close(closed)
		return closed, nil
	}
	liveness := controllerhealthz.NewMutableHealthzHandler(health.liveness()...)
	mux := genericcontrollermanager.NewBaseHandler(&c.Generic.Debugging, liveness)
	mux.Unregister("/configz") // It would be empty: this manager has no configuration file.
	healthz.InstallLivezHandler(mux, health.liveness()...)
	healthz.InstallReadyzHandler(mux, health.readiness()...)
	slis.SLIMetricsWithReset{}.Install(mux)
	if features.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentFlagz) {
		flagz.Install(mux, names.Manager, c.Flags)
	}
	if features.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentStatusz) {
		statusz.Install(mux, names.Manager, statusz.NewRegistry(nil, statusz.WithListedPaths(mux.ListedPaths())))
	}
	handler := genericcontrollermanager.BuildHandlerChain(mux, &c.Authorization, &c.Authentication)
	stopped, _, err := c.SecureServing.Serve(handler, 0, ctx.Done())
	if err != nil {
		return nil, fmt.Errorf("serving on --secure-port: %w", err)
	}
	return stopped, nil
}
