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
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

type brief struct{}

func (brief) Run(context.Context) error { return nil }

// TestControllerThatEnds has a controller that returns although nobody stops it. The manager must not go on without it.
func TestControllerThatEnds(t *testing.T) {
	m := &manager{config: &options.Config{Kubeconfig: &restclient.Config{Host: "127.0.0.1:1"}}}
	r, err := m.newRunner(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.stopEvents()
	err = r.runController(t.Context(), ControllerDescriptor{
		Name: "brief", New: func(context.Context, ControllerContext) (Controller, error) { return brief{}, nil },
	})
	if err == nil || !strings.Contains(err.Error(), "brief") {
		t.Errorf("the error is %v", err)
	}
}

// TestTakeOverKeepsReadiness has a standby that has seen what its controller needs. Then it leads, and waits before it
// makes the controller.
func TestTakeOverKeepsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newStorageVersionMigratorDescriptor()
		health := newHealth([]ControllerDescriptor{d}, nil)
		if got := failingNeeds(health); len(got) != len(d.Needs) {
			t.Errorf("before anybody has asked, these checks fail: %q", got)
		}
		for _, need := range d.Needs {
			health.served[checkName(d, need)].Store(true)
		}
		config := &options.Config{}
		config.Generic.ControllerStartInterval.Duration = time.Minute
		r := &runner{manager: &manager{config: config, health: health}}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if err := r.runController(ctx, d); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if got := failingNeeds(health); len(got) > 0 {
			t.Errorf("these checks fail: %q", got)
		}
		cancel()
	})
}

// TestNeedThatIsNotServedAnyMore has a resource that goes, and comes back.
func TestNeedThatIsNotServedAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
		d := ControllerDescriptor{Needs: []Need{{Resource: leases}}}
		health := newHealth([]ControllerDescriptor{d}, nil)
		isServed := health.served[checkName(d, d.Needs[0])]
		isServed.Store(true)
		client, back := fake.NewClientset(), atomic.Bool{}
		client.Resources = []*metav1.APIResourceList{{
			GroupVersion: "coordination.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "leases"}},
		}}
		client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
			if back.Load() {
				return true, nil, nil
			}
			return true, nil, apierrors.NewNotFound(schema.GroupResource{}, "")
		})
		ended := make(chan error)
		go func() { ended <- waitForNeed(t.Context(), client.Discovery(), d.Needs[0], isServed) }()
		synctest.Wait()
		if len(failingNeeds(health)) != 1 {
			t.Error("the process is ready although the resource is not served")
		}
		back.Store(true)
		if err := <-ended; err != nil || len(failingNeeds(health)) != 0 {
			t.Errorf("the resource is served: the error is %v, and these checks fail: %q", err, failingNeeds(health))
		}
	})
}

// failingNeeds returns the checks of needs that fail.
func failingNeeds(health *health) (failing []string) {
	for _, check := range health.readiness() {
		if strings.Contains(check.Name(), "-needs-") && check.Check(nil) != nil {
			failing = append(failing, check.Name())
		}
	}
	return failing
}

// TestRestoreHidesNoOtherError has an observer that has found a restore of etcd, and controllers that do not end.
func TestRestoreHidesNoOtherError(t *testing.T) {
	restore := fmt.Errorf("the leases are older: %w", storageversion.ErrRestored)
	for _, err := range []error{errStillRunning, errors.Join(restore, errStillRunning)} {
		got := explainRestore(restore, err)
		if !errors.Is(got, errStillRunning) || strings.Count(fmt.Sprint(got), restore.Error()) != 1 {
			t.Errorf("the process ends with %v", got)
		}
	}
	if got := explainRestore(context.Canceled, nil); got != nil {
		t.Errorf("a process that is asked to stop ends with %v", got)
	}
}

// TestLateListEndsAStandbyOnly has an observer that is not sure whether etcd was restored, but that it was then within
// the last minute. The lease of a leader shows a restore that came after it began to lead.
func TestLateListEndsAStandbyOnly(t *testing.T) {
	for name, test := range map[string]struct {
		led  time.Duration
		err  error
		ends bool
	}{
		"standby":               {err: storageversion.ErrEarlier, ends: true},
		"new leader":            {led: time.Minute, err: storageversion.ErrEarlier, ends: true},
		"leader":                {led: time.Hour, err: storageversion.ErrEarlier},
		"leader, and a restore": {led: time.Hour, err: storageversion.ErrRestored, ends: true},
	} {
		ctx, fail := context.WithCancelCause(t.Context())
		m := &manager{}
		if test.led > 0 {
			m.leadsSince.Store(ptr.To(time.Now().Add(-test.led)))
		}
		m.endIfRestored(fail)(test.err, time.Now().Add(-time.Minute))
		if cause := context.Cause(ctx); isRestore(cause) != test.ends {
			t.Errorf("%s: the process ends because of %v", name, cause)
		}
	}
}
