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
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	v1core "k8s.io/client-go/kubernetes/typed/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/version"
	genericcontrollermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/leadermigration"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/config"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

// Run runs the selected controllers of the registry until ctx ends. It serves its port at once, then waits for the API
// server for as long as that takes, then for its turn to lead.
func Run(ctx context.Context, c *config.Config, registry *Registry) error {
	logger := klog.FromContext(ctx)
	logger.Info("Starting", "version", version.Get().String())

	selected, err := selectControllers(ctx, registry, c.Generic.Controllers, features.DefaultFeatureGate)
	if err != nil {
		return err
	}
	state := newState(selected)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served, err := serve(serving, c, state)
	if err != nil {
		stopServing()
		return err
	}
	// The port outlives the controllers, so that probes and metrics tell of the end as well.
	defer func() { stopServing(); <-served }()

	if err := waitForAPIServer(ctx, c.Client, c.Kubeconfig.Host); err != nil {
		return nil // asked to stop before there was anything to do
	}
	close(c.Reachable)
	state.reachable.Store(true)

	// Not ctx: an election tells of its end after it.
	events, stopEvents := newRecorder(serving, c.Client)
	defer stopEvents()
	m := &manager{Config: c, state: state, events: events}
	if slices.ContainsFunc(selected, func(d ControllerDescriptor) bool { return d.Observes }) {
		stopObserving, err := m.observe(serving)
		if err != nil {
			return err
		}
		defer stopObserving()
	}
	return m.run(ctx, selected)
}

// observe runs an observer for as long as the process, whoever leads. What a leader saw ends with it, and a successor that
// only begins to look cannot tell what API servers did in between: it would have to assume the worst, and migrate
// everything after each node that goes down. A standby that looked all the time knows.
func (m *manager) observe(ctx context.Context) (stop func(), err error) {
	// It only reads, so no term has to guard it.
	m.observer, err = observer.New(restclient.AddUserAgent(restclient.CopyConfig(m.Kubeconfig), names.Manager+"/observer"),
		observer.Options{PollInterval: m.Observation.PollInterval})
	if err != nil {
		return nil, fmt.Errorf("making an observer: %w", err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.FromContext(ctx).WithName("observer")))
	var observing sync.WaitGroup
	observing.Go(func() { m.observer.Run(ctx) })
	return func() { cancel(); observing.Wait() }, nil
}

// newRecorder returns a recorder that writes through client until it is stopped.
func newRecorder(ctx context.Context, client kubernetes.Interface) (recorder record.EventRecorderLogger, stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartStructuredLogging(3)
	broadcaster.StartRecordingToSink(&v1core.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: names.Manager}), broadcaster.Shutdown
}

// manager runs controllers, under leases or without.
type manager struct {
	*config.Config
	state *state
	// events are those of elections, which go on when the lease is lost.
	events record.EventRecorderLogger
	// observer is nil if no controller asks for one.
	observer *observer.Observer
	id       string
}

func (m *manager) run(ctx context.Context, selected []ControllerDescriptor) error {
	if !m.Generic.LeaderElection.LeaderElect {
		return m.runControllers(ctx, selected, nil)
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("making an identity for leader election: %w", err)
	}
	// Two processes on one host must not take each other for themselves.
	m.id = hostname + "_" + string(uuid.NewUUID())

	own, shared := m.splitForMigration(ctx, selected)
	return m.lead(ctx, m.Generic.LeaderElection.ResourceName, func(ctx context.Context, term *leaderTerm) error {
		if len(shared) == 0 {
			return m.runControllers(ctx, own, term)
		}
		// The lease shared with the other manager is held only by whoever leads here: were it another instance, two
		// instances would each run half of the controllers.
		var errs [2]error
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error {
			errs[0] = m.runControllers(ctx, own, term)
			return errs[0]
		})
		group.Go(func() error {
			errs[1] = m.lead(ctx, m.Generic.LeaderMigration.LeaderName, func(ctx context.Context, term *leaderTerm) error {
				return m.runControllers(ctx, shared, term)
			})
			return errs[1]
		})
		_ = group.Wait() // the first error; lead has to know of all
		return errors.Join(errs[:]...)
	})
}

// splitForMigration returns the controllers that run under the manager's own lease, and those that move between this
// manager and another one and therefore run under the lease that both managers share.
func (m *manager) splitForMigration(ctx context.Context, selected []ControllerDescriptor) (own, shared []ControllerDescriptor) {
	if !leadermigration.Enabled(&m.Generic) {
		return selected, nil
	}
	filter := leadermigration.NewLeaderMigrator(&m.Generic.LeaderMigration, names.Manager).FilterFunc
	for _, d := range selected {
		switch filter(d.Name) {
		case leadermigration.ControllerNonMigrated:
			own = append(own, d)
		case leadermigration.ControllerMigrated:
			shared = append(shared, d)
		default:
			klog.FromContext(ctx).Info("Leader migration gives the controller to another manager", "controller", d.Name)
		}
	}
	return own, shared
}

// selectControllers returns the controllers that --controllers and the feature gates leave, ordered by name.
func selectControllers(ctx context.Context, registry *Registry, wanted []string, gates featuregate.FeatureGate) ([]ControllerDescriptor, error) {
	logger := klog.FromContext(ctx)
	disabledByDefault := sets.NewString(registry.controllers().DisabledByDefault...) // the library asks for this type
	var selected []ControllerDescriptor
	for _, d := range registry.Descriptors() {
		if !genericcontrollermanager.IsControllerEnabled(d.Name, disabledByDefault, wanted) {
			logger.V(1).Info("Controller is not selected", "controller", d.Name, "controllers", wanted)
			continue
		}
		if gate, off := firstDisabled(gates, d.FeatureGates); off {
			logger.Info("Controller is switched off by a feature gate", "controller", d.Name, "featureGate", gate)
			continue
		}
		selected = append(selected, d)
	}
	if len(selected) == 0 {
		return nil, errors.New("nothing to run: --controllers and --feature-gates leave no controller")
	}
	return selected, nil
}

func firstDisabled(gates featuregate.FeatureGate, required []featuregate.Feature) (featuregate.Feature, bool) {
	for _, gate := range required {
		if !gates.Enabled(gate) {
			return gate, true
		}
	}
	return "", false
}
