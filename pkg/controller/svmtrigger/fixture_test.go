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

package svmtrigger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	"sigs.k8s.io/svm-api/client/informers/externalversions"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var gadgets = schema.GroupResource{Group: "example.com", Resource: "gadgets"}

// observations stand in for an Observer.
type observations struct {
	mu        sync.Mutex
	resources map[schema.GroupResource]storageversion.Observation
	changed   []func(schema.GroupResource)
	// askedInVain is how many times it is asked in vain whether all is known.
	askedInVain int
	looks       map[migrationv1alpha1.EvidenceSource]time.Time
}

func (o *observations) HasSynced() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.askedInVain > 0 {
		o.askedInVain--
		return false
	}
	return true
}

func (o *observations) Subscribe(changed func(schema.GroupResource)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed = append(o.changed, changed)
}

func (o *observations) Resources() []schema.GroupResource {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []schema.GroupResource
	for resource := range o.resources {
		all = append(all, resource)
	}
	return all
}

func (o *observations) Observe(resource schema.GroupResource) storageversion.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	if seen, known := o.resources[resource]; known {
		return seen
	}
	return storageversion.Observation{Resource: resource}
}

func (o *observations) LastRead() map[migrationv1alpha1.EvidenceSource]time.Time { return o.looks }

// see is what a new observation is.
func (o *observations) see(seen storageversion.Observation) {
	o.mu.Lock()
	o.resources[seen.Resource] = seen
	changed := o.changed
	o.mu.Unlock()
	for _, tell := range changed {
		tell(seen.Resource)
	}
}

// fixture is a controller with a clock that stands still, before an API server that counts resource versions and checks
// preconditions. Its caches are filled by hand until it runs.
type fixture struct {
	*Controller
	ctx          context.Context
	client       *fake.Clientset
	clock        *clocktesting.FakeClock
	factory      externalversions.SharedInformerFactory
	observations *observations
	recorder     *record.FakeRecorder
	lastVersion  int
}

func newFixture(t *testing.T, stored ...runtime.Object) *fixture {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	f := &fixture{
		ctx:          ctx,
		client:       fake.NewSimpleClientset(stored...),
		clock:        clocktesting.NewFakeClock(start),
		observations: &observations{resources: map[schema.GroupResource]storageversion.Observation{}},
		recorder:     record.NewFakeRecorder(100),
		lastVersion:  100,
	}
	f.client.PrependReactor("*", "*", f.serve)
	f.factory = externalversions.NewSharedInformerFactory(f.client, 0)
	everything, errs := ParseSelection([]string{"*"})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	controller, err := New(ctx, f.client.MigrationV1alpha1(), f.factory.Migration().V1alpha1(), f.observations, f.recorder,
		Options{AutoMigrate: everything, Periods: DefaultPeriods()}, f.clock)
	if err != nil {
		t.Fatal(err)
	}
	f.Controller = controller
	t.Cleanup(f.queue.ShutDown)
	return f
}

// serve adds to the fake what an API server does: uids, resource versions, preconditions, status apart from the rest.
func (f *fixture) serve(action clienttesting.Action) (bool, runtime.Object, error) {
	resource, tracker := action.GetResource(), f.client.Tracker()
	conflict := func(what string) error {
		return apierrors.NewConflict(resource.GroupResource(), "", errors.New(what))
	}
	f.lastVersion++
	version := strconv.Itoa(f.lastVersion)
	switch a := action.(type) {
	case clienttesting.UpdateActionImpl:
		object := a.GetObject().DeepCopyObject()
		accessor := metaOf(object)
		existing, err := tracker.Get(resource, "", accessor.GetName())
		if err != nil {
			return true, nil, err
		}
		if metaOf(existing).GetUID() != accessor.GetUID() ||
			metaOf(existing).GetResourceVersion() != accessor.GetResourceVersion() {
			return true, nil, conflict("the object has been modified")
		}
		if len(a.GetUpdateOptions().DryRun) > 0 {
			return true, object, nil
		}
		accessor.SetResourceVersion(version)
		return true, object, tracker.Update(resource, object, "")
	case clienttesting.CreateActionImpl:
		object := a.GetObject().DeepCopyObject()
		metaOf(object).SetUID(types.UID("uid-" + version))
		metaOf(object).SetResourceVersion(version)
		if state, isState := object.(*migrationv1alpha1.StorageState); isState {
			state.Status = migrationv1alpha1.StorageStateStatus{}
		}
		return true, object, tracker.Create(resource, object, "")
	case clienttesting.DeleteActionImpl:
		existing, err := tracker.Get(resource, "", a.GetName())
		if err != nil {
			return true, nil, err
		}
		if p := a.GetDeleteOptions().Preconditions; p != nil {
			if p.UID != nil && *p.UID != metaOf(existing).GetUID() || p.ResourceVersion != nil &&
				*p.ResourceVersion != metaOf(existing).GetResourceVersion() {
				return true, nil, conflict("precondition failed")
			}
		}
		return true, nil, tracker.Delete(resource, "", a.GetName())
	}
	return false, nil, nil
}

func metaOf(object runtime.Object) metav1.Object {
	accessor, err := meta.Accessor(object)
	if err != nil {
		panic(err) // every object of this API has metadata
	}
	return accessor
}

// cache puts objects into the caches of a controller that does not run.
func (f *fixture) cache(t *testing.T, cached ...runtime.Object) {
	t.Helper()
	for _, object := range cached {
		indexer := f.factory.Migration().V1alpha1().StorageStates().Informer().GetIndexer()
		if _, isMigration := object.(*migrationv1alpha1.StorageVersionMigration); isMigration {
			indexer = f.factory.Migration().V1alpha1().StorageVersionMigrations().Informer().GetIndexer()
		}
		if err := indexer.Add(object); err != nil {
			t.Fatal(err)
		}
	}
}

// stored returns the state that the API server has.
func (f *fixture) stored(t *testing.T, resource schema.GroupResource) *migrationv1alpha1.StorageState {
	t.Helper()
	state, err := f.client.MigrationV1alpha1().StorageStates().Get(f.ctx, resource.String(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// requests are what the API server was asked, without the requests of informers, each with the preconditions it
// carried.
func (f *fixture) requests() []string {
	var all []string
	for _, action := range f.client.Actions() {
		about := action.GetVerb() + " " + action.GetResource().Resource
		if action.GetSubresource() != "" {
			about += "/" + action.GetSubresource()
		}
		switch a := action.(type) {
		case clienttesting.UpdateActionImpl:
			object := metaOf(a.GetObject())
			about += fmt.Sprintf(" %s if %s@%s", object.GetName(), object.GetUID(), object.GetResourceVersion())
		case clienttesting.CreateActionImpl:
			about += " " + metaOf(a.GetObject()).GetName()
		case clienttesting.DeleteActionImpl:
			about += " " + a.GetName()
			if p := a.GetDeleteOptions().Preconditions; p != nil && p.UID != nil {
				about += " if " + string(*p.UID)
				if p.ResourceVersion != nil {
					about += "@" + *p.ResourceVersion
				}
			}
		case clienttesting.GetActionImpl:
			about += " " + a.GetName()
		default:
			continue
		}
		all = append(all, about)
	}
	return all
}

func (f *fixture) told() []string {
	var all []string
	for {
		select {
		case event := <-f.recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func stateOf(resource schema.GroupResource, resourceVersion string) *migrationv1alpha1.StorageState {
	state := newState(Input{Observation: storageversion.Observation{Resource: resource}})
	state.Annotations = map[string]string{"note": "kept"}
	state.UID, state.ResourceVersion = types.UID("uid-"+resource.Resource), resourceVersion
	return state
}

func migrationOf(resource schema.GroupResource, name string) *migrationv1alpha1.StorageVersionMigration {
	epoch := int64(1)
	return &migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5"},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: resource.Group, Version: "v1", Resource: resource.Resource},
			Target: &migrationv1alpha1.MigrationTarget{
				StorageVersionHash: "hash=", EncodingVersion: "example.com/v1", Epoch: &epoch,
				StorageStateUID: types.UID("uid-" + resource.Resource),
			},
		},
	}
}
