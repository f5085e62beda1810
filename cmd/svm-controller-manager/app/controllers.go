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
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	coordinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationclientset "sigs.k8s.io/svm-api/client/clientset/versioned"
	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

// ControllerContext is what the manager gives to a controller.
type ControllerContext struct {
	// Config is for clients of this controller. Its writes fail once this process does not hold the leader lease any more.
	Config *restclient.Config
	// Client is of the built-in APIs, and MigrationClient of migration.k8s.io. Both are made of Config.
	Client          kubernetes.Interface
	MigrationClient migrationclient.MigrationV1alpha1Interface
	// Informers are shared by all controllers. The objects in them have no managed fields.
	Informers informers.SharedInformerFactory
	// IdentityLeases are the Leases of all API servers that have an identity, and no others.
	IdentityLeases coordinformers.LeaseInformer
	// MigrationInformers are informers of migration.k8s.io.
	MigrationInformers migrationinformers.SharedInformerFactory
	// Observer knows the encodings that the API servers write. It is nil unless the descriptor of a selected controller
	// asks for it. It runs as long as the process does, longer than any controller.
	Observer *observer.Observer
	// Observation is how the observer was made, and how long the servers must agree.
	Observation options.Observation
	// Selected reports whether this manager runs the controller of that name.
	Selected func(name string) bool
	// Events records events. Like all writes, they are lost once this process does not hold the leader lease any more.
	Events record.EventRecorderLogger
}

// runner runs controllers: while this process leads, or, without leader election, as long as it lives.
type runner struct {
	*manager
	// shared is what all controllers get, but each one gets clients and a Config with its own user agent. Its Client is
	// that of the informers. It writes only while this process holds the leader lease, unlike the one in manager.config.
	shared     ControllerContext
	factories  []informerFactory
	stopEvents func()
	metrics    *controllersmetrics.ControllerManagerMetrics

	// making keeps one controller from starting the informers that another one is still setting up.
	making sync.Mutex

	running sync.Map // the names of the controllers that run
}

type informerFactory interface {
	StartWithContext(ctx context.Context)
	Shutdown()
}

// runControllers runs the selected controllers until ctx ends and all of them have returned. Without a term it guards
// no writes.
func (m *manager) runControllers(ctx context.Context, term *leaderTerm) error {
	defer utilruntime.HandleCrashWithContext(ctx)
	r, err := m.newRunner(ctx, term)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, d := range m.selected {
		group.Go(func() error { return r.runController(groupCtx, d) })
	}
	if slices.ContainsFunc(m.selected, isFenced) {
		fenceCtx := klog.NewContext(groupCtx, klog.FromContext(ctx).WithName("fence"))
		group.Go(func() error {
			defer utilruntime.HandleCrashWithContext(fenceCtx)
			m.fence.Run(fenceCtx, r.shared.Client)
			return nil
		})
	}
	writersEnded, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer utilruntime.HandleCrashWithContext(ctx)
		err = group.Wait()
		close(writersEnded)
		for _, factory := range r.factories {
			factory.Shutdown()
		}
		close(ended)
	}()

	<-groupCtx.Done()
	var timeout <-chan time.Time
	if m.config.ShutdownTimeout > 0 {
		timeout = time.After(m.config.ShutdownTimeout)
	}
	select {
	case <-ended:
	case <-timeout:
	}
	select {
	case <-writersEnded: // Informers only read. While no API server answers, those of client-go end up to 30 s late.
		r.stopEvents()
		return err
	default:
		var running []string
		r.running.Range(func(name, _ any) bool { running = append(running, name.(string)); return true })
		slices.Sort(running)
		if len(running) == 0 {
			running = []string{"the check of the fence"}
		}
		err := fmt.Errorf("%w (%v): %q", errStillRunning, m.config.ShutdownTimeout, running)
		if cause := context.Cause(groupCtx); !errors.Is(cause, context.Canceled) {
			err = errors.Join(cause, err)
		}
		return err
	}
}

func (m *manager) newRunner(ctx context.Context, term *leaderTerm) (*runner, error) {
	kubeconfig := restclient.CopyConfig(m.config.Kubeconfig)
	if term != nil {
		kubeconfig.Wrap(term.guard)
	}
	forInformers := restclient.AddUserAgent(restclient.CopyConfig(kubeconfig), names.Manager+"/shared-informers")
	client, err := kubernetes.NewForConfig(forInformers)
	if err != nil {
		return nil, fmt.Errorf("making a client for informers: %w", err)
	}
	migrationClient, err := migrationclientset.NewForConfig(forCustomResources(forInformers))
	if err != nil {
		return nil, fmt.Errorf("making a client for informers: %w", err)
	}
	// Informers of several managers must not list in step.
	resync := wait.Jitter(m.config.Generic.MinResyncPeriod.Duration, 1)
	builtIn := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields))
	leases := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields),
		informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = observer.IdentityLabel }))
	migrations := migrationinformers.NewSharedInformerFactoryWithOptions(migrationClient, resync,
		migrationinformers.WithTransform(withoutManagedFields))
	controllersmetrics.Register()
	events, stopEvents := newRecorder(context.WithoutCancel(ctx), client)
	return &runner{
		manager: m,
		shared: ControllerContext{
			Config:             kubeconfig,
			Client:             client,
			Informers:          builtIn,
			IdentityLeases:     leases.Coordination().V1().Leases(),
			MigrationInformers: migrations,
			Observer:           m.observer,
			Observation:        m.config.Observation,
			Selected: func(name string) bool {
				return slices.ContainsFunc(m.selected, func(d ControllerDescriptor) bool { return d.Name == name })
			},
			Events: events,
		},
		factories:  []informerFactory{builtIn, leases, migrations},
		stopEvents: stopEvents,
		metrics:    controllersmetrics.NewControllerManagerMetrics(names.Manager),
	}, nil
}

// runController waits until the API server serves what the controller needs, makes the controller and runs it. An error
// ends the whole manager: a controller that cannot be made is an error of the program or of its flags.
func (r *runner) runController(ctx context.Context, d ControllerDescriptor) error {
	logger := klog.FromContext(ctx).WithName(d.Name)
	controllerCtx := klog.NewContext(ctx, logger)
	defer utilruntime.HandleCrashWithContext(controllerCtx)
	// Each controller starts after one to two intervals, so that they do not all start at once.
	if !retry.Sleep(ctx, clock.RealClock{}, wait.Jitter(r.config.Generic.ControllerStartInterval.Duration, 1)) {
		return nil // The manager stops.
	}
	for _, need := range d.Needs {
		isServed := r.health.served[checkName(d, need)]
		if err := waitForNeed(controllerCtx, r.shared.Client.Discovery(), need, isServed); err != nil {
			return nil // The manager stops.
		}
	}
	controller, err := r.makeController(controllerCtx, ctx, d)
	if ctx.Err() != nil {
		return nil // The manager stops. Informers that have stopped make constructors fail.
	}
	if err != nil {
		return fmt.Errorf("making controller %q: %w", d.Name, err)
	}
	r.running.Store(d.Name, nil)
	defer r.running.Delete(d.Name)
	r.metrics.ControllerStarted(d.Name)
	defer r.metrics.ControllerStopped(d.Name)
	logger.Info("Controller runs")
	defer logger.Info("Controller has ended")
	err = controller.Run(controllerCtx)
	if ctx.Err() != nil {
		return nil // The manager stops.
	}
	if err == nil {
		err = errors.New("it ended, although nobody stopped it")
	}
	return fmt.Errorf("running controller %q: %w", d.Name, err)
}

// checkNeeds asks the API server, until ctx ends, for what the controllers of a standby need. The readiness checks fail
// until it serves that. So the rollout of a release whose definitions are missing stops at its first Pod.
func (m *manager) checkNeeds(ctx context.Context) {
	for _, d := range m.selected {
		for _, need := range d.Needs {
			if need.Optional {
				continue
			}
			go func() {
				defer utilruntime.HandleCrashWithContext(ctx)
				logger := klog.FromContext(ctx).WithName(d.Name)
				client, isServed := m.config.Client.Discovery(), m.health.served[checkName(d, need)]
				_ = waitForNeed(klog.NewContext(ctx, logger), client, need, isServed) // The error says that ctx has ended.
			}()
		}
	}
}

// makeController makes a controller and starts the informers that it asked for. All controllers share these, so they
// run with informerCtx, whose logger names no controller.
func (r *runner) makeController(ctx, informerCtx context.Context, d ControllerDescriptor) (Controller, error) {
	r.making.Lock()
	defer r.making.Unlock()
	c := r.shared
	c.Config = restclient.AddUserAgent(restclient.CopyConfig(c.Config), names.Manager+"/"+d.Name)
	var err error
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return nil, err
	}
	if c.MigrationClient, err = migrationclient.NewForConfig(forCustomResources(c.Config)); err != nil {
		return nil, err
	}
	controller, err := d.New(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, factory := range r.factories {
		factory.StartWithContext(informerCtx)
	}
	return controller, nil
}

// forCustomResources returns a copy that asks for JSON, whatever --kube-api-content-type says: there is no protobuf for
// custom resources.
func forCustomResources(kubeconfig *restclient.Config) *restclient.Config {
	kubeconfig = restclient.CopyConfig(kubeconfig)
	kubeconfig.ContentType, kubeconfig.AcceptContentTypes = runtime.ContentTypeJSON, ""
	return kubeconfig
}

// withoutManagedFields keeps caches small. Nobody reads managed fields there.
func withoutManagedFields(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}
