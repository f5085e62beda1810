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
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// TestThreeServers has no StorageVersion API: the observer asks each server at its own address, which is one of IPv6.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{IPv6: true, Servers: []controlplane.Server{open, open, open}})
	s := startObserver(t, cp.Config(observerUser, "system:masters"), observer.Options{})

	t.Run("every server is asked at its own address", func(t *testing.T) {
		within(t, soon, func() error { return s.complete(deployments, storageversion.BuiltIn, 1) })
		// A server that renews its address late is not asked there for a while.
		within(t, soon, func() error { return s.checkEvidence(cp) })
	})
	t.Run("a killed server that comes back as another version is seen at once", func(t *testing.T) {
		emulate(t, s, cp.Servers()[2])
		within(t, soon, func() error { return s.complete(policies, storageversion.BuiltIn, 2) })
		checkVersions(t, s)
	})
	t.Run("a server that reports no hashes is unread", func(t *testing.T) { testWithoutHashes(t, s, cp.Servers()[2]) })
	var crashed *controlplane.APIServer
	t.Run("a server takes the place of one that crashed", func(t *testing.T) { crashed = testReplacement(t, s, cp) })
	t.Run("custom resources", func(t *testing.T) { testCustomResources(t, s, cp) })
	t.Run("the crashed server is gone, and its Lease is not", func(t *testing.T) {
		within(t, 3*eventually, func() error {
			if s.knows(crashed) {
				return fmt.Errorf("%s still counts", crashed.Identity())
			}
			return s.complete(deployments, storageversion.BuiltIn, 1)
		})
		client := kubernetes.NewForConfigOrDie(cp.AdminConfig())
		_, err := client.CoordinationV1().Leases("kube-system").Get(t.Context(), crashed.Identity(), metav1.GetOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	s.stop()
}

// testWithoutHashes has a server that does not say in its documents what it writes, and then says it again.
func testWithoutHashes(t *testing.T, s *observed, server *controlplane.APIServer) {
	restartWith := func(hashes bool) {
		t.Helper()
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		err := server.Restart(func(spec *controlplane.Server) {
			spec.FeatureGates = map[string]bool{"StorageVersionHash": hashes}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	restartWith(false)
	within(t, soon, func() error {
		o := s.Observe(deployments)
		if o.Problem == nil || !strings.Contains(o.Problem.Message, "StorageVersionHash") {
			return fmt.Errorf("problem %v", o.Problem)
		}
		return nil
	})
	t.Log(s.Observe(deployments).Problem.Message)
	restartWith(true)
	within(t, soon, func() error { return s.complete(deployments, storageversion.BuiltIn, 1) })
}

// testReplacement kills a server, whose identity Lease stays for an hour, and starts another one elsewhere.
func testReplacement(
	t *testing.T, s *observed, cp *controlplane.ControlPlane,
) (crashed *controlplane.APIServer) {
	crashed = cp.Servers()[1]
	if err := crashed.Kill(); err != nil {
		t.Fatal(err)
	}
	successor, err := cp.AddServer(t.Context(), open)
	if err != nil {
		t.Fatal(err)
	}
	within(t, soon, func() error {
		if !s.knows(successor) {
			return fmt.Errorf("nothing is known of %s", successor.Identity())
		}
		return s.complete(deployments, storageversion.BuiltIn, 1)
	})
	return crashed
}

// knows reports whether what is known of Deployments is from that server among others.
func (s *observed) knows(server *controlplane.APIServer) bool {
	last, _ := ptrTo(s.Observe(deployments)).Last()
	return slices.ContainsFunc(last.Evidence.Servers, func(one migrationv1alpha1.ServerEvidence) bool {
		return one.Identity == server.Identity()
	})
}

func ptrTo[T any](v T) *T { return &v }

// emulate kills the server and starts it as the version before, with the API of policies of that version.
func emulate(t *testing.T, s *observed, server *controlplane.APIServer) {
	t.Helper()
	within(t, eventually, func() error { return s.complete(policies, storageversion.BuiltIn, 1) })
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	err := server.Restart(func(spec *controlplane.Server) {
		spec.EmulatedVersion = "1.36"
		spec.RuntimeConfig = append(spec.RuntimeConfig, "admissionregistration.k8s.io/v1beta1=true")
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkVersions(t *testing.T, s *observed) {
	t.Helper()
	want := []string{"admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1"}
	if got := s.versions(policies); !slices.Equal(got, want) {
		t.Errorf("encodings %q, want %q", got, want)
	}
	if s.toldOf(policies) == 0 {
		t.Error("no subscriber was told")
	}
}

func (s *observed) checkEvidence(cp *controlplane.ControlPlane) error {
	last, _ := ptrTo(s.Observe(deployments)).Last()
	var addresses, identities, wantAddresses, wantIdentities []string
	for _, e := range last.Evidence.Endpoints {
		addresses = append(addresses, e.Address)
	}
	for _, e := range last.Evidence.Servers {
		identities = append(identities, e.Identity)
	}
	for _, server := range cp.Servers() {
		wantAddresses = append(wantAddresses, net.JoinHostPort(server.Address(), "6443"))
		wantIdentities = append(wantIdentities, server.Identity())
	}
	slices.Sort(wantAddresses)
	slices.Sort(wantIdentities)
	if !slices.Equal(addresses, wantAddresses) || !slices.Equal(identities, wantIdentities) {
		return fmt.Errorf("asked at %q for %q, want %q for %q", addresses, identities, wantAddresses, wantIdentities)
	}
	if last.Evidence.Source != migrationv1alpha1.EvidenceFromServerDiscovery {
		return fmt.Errorf("the evidence is from %q", last.Evidence.Source)
	}
	return nil
}

// TestOneServer has no EndpointSlices.
func TestOneServer(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{open}})
	t.Run("an idle observer polls", func(t *testing.T) { testOneServerWithoutAddress(t, cp) })
	t.Run("restarts", func(t *testing.T) { testRestartsOfTheOnlyServer(t, cp) })
}

func testOneServerWithoutAddress(t *testing.T, cp *controlplane.ControlPlane) {
	config, polls := cp.Config(observerUser, "system:masters"), &atomic.Int64{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			// A poll lists all Leases at once. Whoever watches them asks for pages.
			query := request.URL.Query()
			if strings.HasSuffix(request.URL.Path, "/leases") && !query.Has("limit") && !query.Has("watch") {
				polls.Add(1)
			}
			return next.RoundTrip(request)
		})
	})
	s := startObserver(t, config, observer.Options{PollInterval: 2 * time.Second})
	within(t, soon, func() error { return s.complete(deployments, storageversion.BuiltIn, 1) })
	if class := s.Observe(policies).Class; class != storageversion.BuiltIn {
		t.Errorf("%s is %q", policies, class)
	}

	t.Run("a server that is away changes nothing", func(t *testing.T) {
		before := s.Observe(deployments)
		server := cp.Servers()[0]
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		duringRequests(t, polls, 3, func() error { // Two polls have ended when the third one begins.
			after := s.Observe(deployments)
			if after.Presence != before.Presence || len(after.Sightings) != len(before.Sightings) {
				return fmt.Errorf("presence %q and %d sightings, before %q and %d",
					after.Presence, len(after.Sightings), before.Presence, len(before.Sightings))
			}
			return nil
		})
		if err := server.Restart(nil); err != nil {
			t.Fatal(err)
		}
		within(t, soon, func() error {
			last, _ := ptrTo(s.Observe(deployments)).Last()
			first, _ := before.Last()
			if storageversion.SameEvidence(last.Evidence, first.Evidence) {
				return fmt.Errorf("the new process was not seen")
			}
			return s.complete(deployments, storageversion.BuiltIn, 1)
		})
	})
	s.stop()
}
