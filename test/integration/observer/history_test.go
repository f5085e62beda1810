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

package observer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// testRestartsOfTheOnlyServer has no StorageVersion API and no other server: only etcd tells what has happened in
// between.
func testRestartsOfTheOnlyServer(t *testing.T, cp *controlplane.ControlPlane) {
	server := cp.Servers()[0]
	config := cp.Config(observerUser, "system:masters")
	line := cuttable(config)
	s := startObserver(t, config, observer.Options{})
	within(t, eventually, func() error { return s.complete(configMaps, storageversion.BuiltIn, 1) })
	admin := cp.Config(observerUser, "system:masters")

	for name, end := range map[string]func() error{"killed": server.Kill, "stopped": server.Stop} {
		before := confirmedEvidence(t, s)
		line.cut.Store(true) // The observer comes back when the restart is over.
		failed := restart(t, server, end)
		awaitLease(t, admin, server, before)
		line.cut.Store(false)
		awaitAsked(t, s, before)
		t.Logf("a server was %s, and the observer found it back", name)
		checkUnread(t, s, before, failed)

		another := startObserver(t, admin, observer.Options{})
		awaitAsked(t, another, before)
		t.Logf("a server was %s, and another observer began", name)
		checkUnread(t, another, before, failed)
		another.stop()
	}

	before := confirmedEvidence(t, s)
	s.stop()
	failed := restart(t, server, server.Kill)
	brief := awaitLease(t, admin, server, before)
	failed += restart(t, server, server.Kill)
	awaitLease(t, admin, server, before, evidenceOf(brief))
	s = startObserver(t, config, observer.Options{})
	awaitAsked(t, s, before)
	t.Log("a server lived too briefly to be asked")
	checkUnread(t, s, before, failed, brief)
	s.stop()
}

// line is how an observer reaches the API server.
type line struct{ cut atomic.Bool }

// cuttable changes the config so that the line can be cut.
func cuttable(config *rest.Config) *line {
	l := &line{}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if l.cut.Load() {
			return nil, errors.New("the line is cut")
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return l
}

// restart ends the server and starts it again. It returns how many processes ended before one was ready.
func restart(t *testing.T, server *controlplane.APIServer, end func() error) (failed int) {
	t.Helper()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	before := server.Starts()
	if err := server.Restart(nil); err != nil {
		t.Fatal(err)
	}
	return server.Starts() - before - 1
}

func evidenceOf(server storageversion.Process) migrationv1alpha1.StorageEvidence {
	return migrationv1alpha1.StorageEvidence{Servers: []migrationv1alpha1.ServerEvidence{
		{Identity: server.Identity, Incarnation: server.Incarnation}}}
}

// awaitLease waits until a process that is none of those before holds the Lease of the server, and returns it.
func awaitLease(
	t *testing.T, config *rest.Config, server *controlplane.APIServer, before ...migrationv1alpha1.StorageEvidence,
) storageversion.Process {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var holder storageversion.Process
	within(t, eventually, func() error {
		leases := client.CoordinationV1().Leases(metav1.NamespaceSystem)
		lease, err := leases.Get(t.Context(), server.Identity(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		holder = storageversion.Process{Identity: lease.Name, Incarnation: *lease.Spec.HolderIdentity}
		for _, evidence := range before {
			if slices.Equal(incarnations(evidence), []string{holder.Incarnation}) {
				return fmt.Errorf("%s holds the Lease still", holder.Incarnation)
			}
		}
		return nil
	})
	return holder
}

func incarnations(evidence migrationv1alpha1.StorageEvidence) []string {
	var all []string
	for _, server := range evidence.Servers {
		all = append(all, server.Incarnation)
	}
	return all
}

func lastEvidence(s *observed) migrationv1alpha1.StorageEvidence {
	last, _ := ptrTo(s.Observe(configMaps)).Last()
	return last.Evidence
}

// confirmedEvidence waits until it is certain which process was asked. One that ends before that may not have been.
func confirmedEvidence(t *testing.T, s *observed) migrationv1alpha1.StorageEvidence {
	t.Helper()
	within(t, eventually, func() error {
		if at := s.Observe(configMaps).CertainFrom; !at.IsZero() {
			return fmt.Errorf("the look is confirmed after %v", at)
		}
		return nil
	})
	return lastEvidence(s)
}

// awaitAsked waits until the observer has asked another process than the one before.
func awaitAsked(t *testing.T, s *observed, before migrationv1alpha1.StorageEvidence) {
	t.Helper()
	within(t, eventually, func() error {
		now := lastEvidence(s)
		if len(now.Endpoints) == 0 || slices.Equal(incarnations(now), incarnations(before)) {
			return fmt.Errorf("the evidence is of %q, from %d addresses", incarnations(now), len(now.Endpoints))
		}
		return s.complete(configMaps, storageversion.BuiltIn, 1)
	})
}

// checkUnread checks that nothing is missing in the run since the evidence, and which processes nobody read in that
// time. Those that failed while they started may have held the Lease too.
func checkUnread(
	t *testing.T, s *observed, evidence migrationv1alpha1.StorageEvidence, failed int, want ...storageversion.Process,
) {
	t.Helper()
	run := s.Observe(configMaps).Sightings
	from := slices.IndexFunc(run, func(s storageversion.Sighting) bool {
		return storageversion.Continues(evidence, s.Evidence)
	})
	if from < 0 {
		t.Fatalf("the run begins with %q and does not reach back to %q",
			incarnations(run[0].Evidence), incarnations(evidence))
	}
	var unseen []storageversion.Process
	for _, sighting := range run[from:] {
		for _, server := range sighting.UnreadDeparted {
			if !slices.Contains(incarnations(evidence), server.Incarnation) {
				unseen = append(unseen, server)
			}
		}
	}
	isSeen := func(process storageversion.Process) bool { return !slices.Contains(unseen, process) }
	if slices.ContainsFunc(want, isSeen) || len(unseen) > len(want)+failed {
		t.Errorf("nobody read %v, want %v and at most %d that failed", unseen, want, failed)
	}
}
