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

package status

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// TestAPIServerThatIsAway has one that fails to answer once, and then for fifteen seconds. The person is told once that
// what is shown is old, and once that it is not any more.
func TestAPIServerThatIsAway(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kube, asked := kubefake.NewClientset(), 0
	kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		if asked > 25 {
			cancel()
		}
		away := asked == 2 || asked > 4 && asked < 20
		return away, nil, errors.New("connection refused")
	})
	fakeClock := clocktesting.NewFakeClock(now)
	go func() {
		for ctx.Err() == nil {
			if fakeClock.HasWaiters() {
				fakeClock.Step(time.Second)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	s := state(t, "widgets.example.com", "", "MigrationQueued", "", "")
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	o := &Options{NamedOptions: cli.NamedOptions{
		Env:     &cli.Env{IOStreams: streams, Clock: fakeClock},
		Clients: &cli.Clients{Migration: fake.NewClientset(&s).MigrationV1alpha1(), Kube: kube},
	}}
	o.ManagerLease.Name = "svm-controller-manager"
	cluster := &cli.Cluster{Catalog: &cli.Catalog{}, States: []migrationv1alpha1.StorageState{s}}
	if err := o.watch(ctx, cluster, &Report{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got the error %v", err)
	}
	for _, want := range []string{
		"12:00:09 The API server cannot be read since 12:00:04, and what is shown is of that time.",
		"12:00:20 The API server can be read again.",
	} {
		if strings.Count(errOut.String(), want) != 1 {
			t.Errorf("got\n%s\nwant once: %s", errOut, want)
		}
	}
	if n := strings.Count(errOut.String(), "The API server"); n != 2 {
		t.Errorf("it is said %d times:\n%s", n, errOut)
	}
}
