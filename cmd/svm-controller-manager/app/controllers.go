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
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	apiserverinternalinformers "k8s.io/client-go/informers/apiserverinternal/v1alpha1"
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

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/config"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

const (
	// identityLabel marks the Leases by which API servers show that they live.
	identityLabel     = "apiserver.kubernetes.io/identity"
	identityNamespace = metav1.NamespaceSystem

	// startJitter spreads the starts of controllers over up to twice --controller-start-interval.
	startJitter = 1.0
)

// ControllerContext is what a controller is made of.
type ControllerContext struct {
	// Config is for clients of this controller. Its writes fail once the leader lease is not held any more.
	Config *restclient.Config
	// Informers are shared by all controllers. Managed fields are left out of what they hold.
	Informers informers.SharedInformerFactory
	// IdentityLeases are the Leases of all API servers that give themselves an identity, and no others.
	IdentityLeases coordinformers.LeaseInformer
	// StorageVersions returns the informer of StorageVersions, of which a cluster may have none. Use it in the place of that
	// of Informers, which logs an error at every try while the API is not served.
	StorageVersions func() apiserverinternalinformers.StorageVersionInformer
	// MigrationInformers are Informers of migration.k8s.io.
	MigrationInformers migrationinformers.SharedInformerFactory
	// Observer knows the encodings that the API servers write, for controllers whose descriptor asks for it. It runs for as
	// long as the process, longer than any controller. Observation is what it was made with, and how long to wait for
	// agreement.
	Observer    *observer.Observer
	Observation config.Observation
	// Selected says whether this manager runs the controller of that name.
	Selected func(name string) bool
	// Events records for this manager. Like all writes, events are lost once the leader lease is not held any more.
	Events record.EventRecorderLogger
}

// Client returns a client of the built-in APIs.
func (c ControllerContext) Client() (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}

// MigrationClient returns a client of migration.k8s.io.
func (c ControllerContext) MigrationClient() (migrationclient.MigrationV1alpha1Interface, error) {
	client, err := migrationclient.NewForConfig(forCustomResources(c.Config))
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}

// controllersRun is one run of controllers: the time of a leader, or of the process.
type controllersRun struct {
	config          *restclient.Config
	client          kubernetes.Interface
	informers       informers.SharedInformerFactory
	identityLeases  informers.SharedInformerFactory
	storageVersions func() apiserverinternalinformers.StorageVersionInformer
	migrations      migrationinformers.SharedInformerFactory
	observer        *observer.Observer
	observation     config.Observation
	events          record.EventRecorderLogger
	stopEvents      func()
	startInterval   time.Duration
	state           *state
	metrics         *controllersmetrics.ControllerManagerMetrics

	// making serializes the making of controllers with the start of informers: an informer is set up before it starts.
	making sync.Mutex

	mu      sync.Mutex
	running map[string]bool
}

// runControllers runs controllers until ctx ends and all of them have ended. Without a term writes are not guarded.
func (m *manager) runControllers(ctx context.Context, descriptors []ControllerDescriptor, term *leaderTerm) error {
	r, err := m.newControllersRun(ctx, term)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	// With nothing to run a leader still leads.
	group.Go(func() error { <-groupCtx.Done(); return nil })
	for _, d := range descriptors {
		group.Go(func() error { return r.runController(groupCtx, d) })
	}
	ended := make(chan error, 1)
	go func() {
		err := group.Wait()
		r.informers.Shutdown()
		r.identityLeases.Shutdown()
		r.migrations.Shutdown()
		r.stopEvents()
		ended <- err
	}()

	select {
	case err := <-ended:
		return err
	case <-groupCtx.Done():
	}
	var timeout <-chan time.Time
	if m.ShutdownTimeout > 0 {
		timeout = time.After(m.ShutdownTimeout)
	}
	select {
	case err := <-ended:
		return err
	case <-timeout:
		err := fmt.Errorf("%w (%v): %q", errStillRunning, m.ShutdownTimeout, r.names())
		if cause := context.Cause(groupCtx); !errors.Is(cause, context.Canceled) {
			err = errors.Join(cause, err)
		}
		return err
	}
}

func (m *manager) newControllersRun(ctx context.Context, term *leaderTerm) (*controllersRun, error) {
	kubeconfig := restclient.CopyConfig(m.Kubeconfig)
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
	resync := time.Duration(float64(m.Generic.MinResyncPeriod.Duration) * (1 + rand.Float64()))
	controllersmetrics.Register()
	events, stopEvents := newRecorder(context.WithoutCancel(ctx), client)
	shared := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields))
	return &controllersRun{
		config:          kubeconfig,
		client:          client,
		informers:       shared,
		storageVersions: sync.OnceValue(func() apiserverinternalinformers.StorageVersionInformer { return storageVersionInformer(ctx, shared) }),
		identityLeases: informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields),
			informers.WithNamespace(identityNamespace),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = identityLabel })),
		migrations: migrationinformers.NewSharedInformerFactoryWithOptions(migrationClient, resync,
			migrationinformers.WithTransform(withoutManagedFields)),
		observer:      m.observer,
		observation:   m.Observation,
		events:        events,
		stopEvents:    stopEvents,
		startInterval: m.Generic.ControllerStartInterval.Duration,
		state:         m.state,
		metrics:       controllersmetrics.NewControllerManagerMetrics(names.Manager),
		running:       map[string]bool{},
	}, nil
}

// runController waits for what the controller needs, makes it and runs it. An error ends the whole manager: a controller
// that cannot be made is an error of the program or of its flags, which waiting does not mend.
func (r *controllersRun) runController(ctx context.Context, d ControllerDescriptor) error {
	// What controllers share does not log in the name of one.
	shared := ctx
	logger := klog.FromContext(ctx).WithName(d.Name)
	ctx = klog.NewContext(ctx, logger)
	defer r.state.forget(d)
	for _, need := range d.Needs {
		r.state.waiting(d, need)
	}
	if err := pause(ctx, wait.Jitter(r.startInterval, startJitter)); err != nil {
		return nil // asked to stop
	}
	for _, need := range d.Needs {
		if err := waitForNeed(ctx, r.client.Discovery(), need, func() { r.state.found(d, need) }); err != nil {
			return nil // asked to stop
		}
	}
	controller, err := r.makeController(ctx, shared, d)
	if ctx.Err() != nil {
		return nil // asked to stop, which informers that have stopped answer with errors
	}
	if err != nil {
		return fmt.Errorf("making controller %q: %w", d.Name, err)
	}
	if controller == nil {
		logger.Info("Controller has nothing to do")
		return nil
	}
	r.setRunning(d.Name, true)
	defer r.setRunning(d.Name, false)
	logger.V(1).Info("Controller runs")
	defer logger.V(1).Info("Controller has ended")
	controller.Run(ctx)
	return nil
}

// makeController makes a controller and starts what it asked for, which runs until shared ends.
func (r *controllersRun) makeController(ctx, shared context.Context, d ControllerDescriptor) (Controller, error) {
	r.making.Lock()
	defer r.making.Unlock()
	controller, err := d.New(ctx, ControllerContext{
		Config:             restclient.AddUserAgent(restclient.CopyConfig(r.config), names.Manager+"/"+d.Name),
		Informers:          r.informers,
		IdentityLeases:     r.identityLeases.Coordination().V1().Leases(),
		StorageVersions:    r.storageVersions,
		MigrationInformers: r.migrations,
		Observer:           r.observer,
		Observation:        r.observation,
		Selected:           r.state.isSelected,
		Events:             r.events,
	})
	if err != nil {
		return nil, err
	}
	r.informers.StartWithContext(shared)
	r.identityLeases.StartWithContext(shared)
	r.migrations.StartWithContext(shared)
	return controller, nil
}

// forCustomResources returns a copy that asks for JSON whatever --kube-api-content-type says: custom resources have no
// protobuf.
func forCustomResources(kubeconfig *restclient.Config) *restclient.Config {
	kubeconfig = restclient.CopyConfig(kubeconfig)
	kubeconfig.ContentType, kubeconfig.AcceptContentTypes = runtime.ContentTypeJSON, ""
	return kubeconfig
}

func storageVersionInformer(ctx context.Context, shared informers.SharedInformerFactory) apiserverinternalinformers.StorageVersionInformer {
	storageVersions := shared.Internal().V1alpha1().StorageVersions()
	if err := storageVersions.Informer().SetWatchErrorHandlerWithContext(tellWhileUnserved(clock.RealClock{})); err != nil {
		// Somebody asked Informers for it: it works, and is less quiet.
		klog.FromContext(ctx).V(4).Info("The informer of storage versions logs errors while its API is not served", "err", err)
	}
	return storageVersions
}

func (r *controllersRun) setRunning(name string, running bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if running {
		r.running[name] = true
		r.metrics.ControllerStarted(name)
	} else {
		delete(r.running, name)
		r.metrics.ControllerStopped(name)
	}
}

func (r *controllersRun) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.running))
}

// withoutManagedFields keeps caches small: no controller reads managed fields.
func withoutManagedFields(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}
