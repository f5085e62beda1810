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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/version"
	genericcontrollermanager "k8s.io/controller-manager/app"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

// run runs the selected controllers of the registry until ctx ends. It opens its port at once, then waits for the API
// server as long as that takes, and then until it leads.
func run(ctx context.Context, c *options.Config, all *registry) error {
	logger := klog.FromContext(ctx)
	logger.Info("Starting", "version", version.Get().String())
	options.WarnOfOtherLease(ctx, c.Generic.LeaderElection)

	selected, err := selectControllers(ctx, all, c.Generic.Controllers, features.DefaultFeatureGate)
	if err != nil {
		return err
	}
	health := newHealth(selected, c.Reachable)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	portClosed, err := serve(serving, c, health)
	if err != nil {
		stopServing()
		return err
	}
	// The port outlives the controllers, so that probes and metrics show their end as well.
	defer func() { stopServing(); <-portClosed }()

	if err := waitForAPIServer(ctx, c.Client, c.Kubeconfig.Host); err != nil {
		return nil // The manager stops before it has begun.
	}
	close(c.Reachable)

	// An election records its end after ctx has ended, so it gets another context.
	events, stopEvents := newRecorder(serving, c.Client)
	defer stopEvents()
	m := &manager{
		config: c, selected: selected, health: health, events: events, fence: fence.NewWatch(clock.RealClock{}),
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if slices.ContainsFunc(selected, observes) {
		if c.Observation.SettlePeriod < storageversion.DefaultSettlePeriod {
			logger.Info("--settle-period is shorter than the default. Unless the API servers have a short --request-timeout, "+
				"objects may be stored in an old version after their migration, and nobody notices",
				"settlePeriod", c.Observation.SettlePeriod, "default", storageversion.DefaultSettlePeriod)
		}
		// The observer runs as long as the process, whoever leads. A leader that started to observe only when it took over
		// would not know what the API servers did before. It would have to assume the worst, and migrate everything each
		// time a node goes down. The observer only reads, so no term has to guard it.
		kubeconfig := restclient.AddUserAgent(restclient.CopyConfig(c.Kubeconfig), names.Manager+"/observer")
		m.observer, err = observer.New(kubeconfig, observer.Options{
			PollInterval: c.Observation.PollInterval, Restored: m.endIfRestored(fail),
		})
		if err != nil {
			return fmt.Errorf("making an observer: %w", err)
		}
		health.observer.Store(m.observer)
		observing, stopObserving := context.WithCancel(klog.NewContext(serving, logger.WithName("observer")))
		var ended sync.WaitGroup
		ended.Go(func() { m.observer.Run(observing) })
		defer func() { stopObserving(); ended.Wait() }()
	}
	err = m.run(ctx)
	return explainRestore(context.Cause(ctx), err)
}

// explainRestore returns the error that ends the process: err, and cause if that is what the observer has found about a
// restore of etcd.
func explainRestore(cause, err error) error {
	if isRestore(cause) && !errors.Is(err, cause) {
		err = errors.Join(err, cause)
	}
	if isRestore(err) {
		return fmt.Errorf("%w, so this process ends, and the next one reads everything again. If this repeats, "+
			"restart the API servers", err)
	}
	return err
}

// isRestore reports whether an error says that etcd was restored, or may have been.
func isRestore(err error) bool {
	return errors.Is(err, storageversion.ErrRestored) || errors.Is(err, storageversion.ErrEarlier)
}

// manager runs controllers, with leader election or without.
type manager struct {
	// config has the client of the manager itself, which writes whoever leads.
	config   *options.Config
	selected []ControllerDescriptor
	health   *health
	// events records the events of elections. They are written even after the lease is lost.
	events record.EventRecorderLogger
	// observer is nil if no selected controller asks for one.
	observer *observer.Observer
	// fence checks whether the fence stands.
	fence *fence.Watch
	// leadsSince is when this process began to lead, or nil.
	leadsSince atomic.Pointer[time.Time]
}

// watchDelay is how late a watch may show something, if it does not hang.
const watchDelay = 15 * time.Second

// endIfRestored returns a function that ends the process if etcd was restored, or if that is not sure. A leader goes on
// while it is not sure: its own lease shows a restore that came after it began to lead.
func (m *manager) endIfRestored(fail context.CancelCauseFunc) func(error, time.Time) {
	return func(err error, after time.Time) {
		since := m.leadsSince.Load()
		if errors.Is(err, storageversion.ErrEarlier) && since != nil && after.Sub(*since) > watchDelay {
			return
		}
		fail(err)
	}
}

func (m *manager) run(ctx context.Context) error {
	if !m.config.Generic.LeaderElection.LeaderElect {
		klog.FromContext(ctx).Info("Leader election is off: run one instance only. Two would migrate side by side")
		return m.runControllers(ctx, nil)
	}
	standby, cancel := context.WithCancel(ctx)
	defer cancel()
	m.checkNeeds(standby)
	return m.lead(ctx, func() {
		m.leadsSince.Store(ptr.To(time.Now()))
		cancel()
	})
}

// selectControllers returns the controllers that --controllers and the feature gates leave, ordered by name.
func selectControllers(
	ctx context.Context, all *registry, wanted []string, gates featuregate.FeatureGate,
) ([]ControllerDescriptor, error) {
	logger := klog.FromContext(ctx)
	disabledByDefault := sets.NewString(all.options.DisabledByDefault...) // the library asks for this type
	var selected []ControllerDescriptor
	for _, d := range all.descriptors {
		if !genericcontrollermanager.IsControllerEnabled(d.Name, disabledByDefault, wanted) {
			logger.V(1).Info("Controller is not selected", "controller", d.Name, "controllers", wanted)
			continue
		}
		off := slices.IndexFunc(d.FeatureGates, func(gate featuregate.Feature) bool { return !gates.Enabled(gate) })
		if off >= 0 {
			logger.Info("A feature gate disables the controller", "controller", d.Name, "featureGate", d.FeatureGates[off])
			continue
		}
		selected = append(selected, d)
	}
	if len(selected) == 0 {
		return nil, errors.New("nothing to run: --controllers and --feature-gates leave no controller")
	}
	return selected, nil
}
