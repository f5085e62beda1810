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

package controlplane

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
)

func TestThreeServersOnHosts(t *testing.T) {
	t.Parallel()
	began := time.Now()
	server := StorageVersionAPI(Server{AllowAll: true})
	cp := Start(t, Config{Servers: []Server{server, server, server}})
	t.Logf("three servers were ready after %v", time.Since(began).Round(time.Millisecond))

	// In this order: the later ones leave servers that were killed, cut and paused in between.
	for _, step := range []struct {
		name string
		run  func(*testing.T, *ControlPlane)
	}{
		{"every server has an identity and an endpoint of its own", checkMembership},
		{"every resource has a storage version entry of each server", checkStorageVersions},
		{"a server listens on its own host only", checkIsolation},
		{"the balancer goes round, and keeps to the servers it is restricted to", checkBalancer},
		{"those outside of the namespaces have ways in", checkOutside},
		{"a killed server comes back with its identity and other flags", checkKillAndRestart},
		{"clients go elsewhere while a server is paused", checkPause},
		{"a cut server is silent and does not end", checkCut},
		{"nobody is ready while etcd is cut", checkEtcdCut},
		{"a host is cut from one other", checkCutFrom},
		{"a server can be added", checkAddServer},
		{"programs run on hosts, and in this process's place", checkPrograms},
	} {
		t.Run(step.name, func(t *testing.T) { step.run(t, cp) })
	}
}

func checkMembership(t *testing.T, cp *ControlPlane) {
	client := clientFor(t, cp.AdminConfig())
	leases, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{
		LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver",
	})
	must(t, err)
	identities, wantIdentities := sets.New[string](), sets.New[string]()
	wantAddresses := sets.New[string]()
	for _, lease := range leases.Items {
		identities.Insert(lease.Name + " of " + lease.Labels["kubernetes.io/hostname"])
	}
	for _, s := range cp.Servers() {
		wantIdentities.Insert(s.Identity() + " of " + s.Host())
		wantAddresses.Insert(s.Address())
	}
	if diff := cmp.Diff(sets.List(wantIdentities), sets.List(identities)); diff != "" {
		t.Errorf("identities (-want +got):\n%s", diff)
	}
	// A server that renews its record too late is not listed for a while.
	eventually(t, "the endpoints are those of the servers", func(ctx context.Context) error {
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		addresses := sets.New[string]()
		for _, endpoint := range slice.Endpoints {
			addresses.Insert(endpoint.Addresses...)
		}
		if diff := cmp.Diff(sets.List(wantAddresses), sets.List(addresses)); diff != "" {
			return fmt.Errorf("endpoints (-want +got):\n%s", diff)
		}
		return nil
	})
	if wantIdentities.Len() != 3 || wantAddresses.Len() != 3 {
		t.Errorf("three servers share identities %v or addresses %v", wantIdentities, wantAddresses)
	}
}

func checkStorageVersions(t *testing.T, cp *ControlPlane) {
	client := clientFor(t, cp.AdminConfig()).InternalV1alpha1().StorageVersions()
	versions, err := client.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(versions.Items) == 0 {
		t.Error("there are no StorageVersion objects")
	}
	want := sets.New[string]()
	for _, s := range cp.Servers() {
		want.Insert(s.Identity())
	}
	for _, v := range versions.Items {
		if diff := cmp.Diff(sets.List(want), sets.List(entriesOf(v))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v.Name, diff)
		}
	}
}

func entriesOf(v apiserverinternalv1alpha1.StorageVersion) sets.Set[string] {
	entries := sets.New[string]()
	for _, entry := range v.Status.StorageVersions {
		entries.Insert(entry.APIServerID)
	}
	return entries
}

func checkIsolation(t *testing.T, cp *ControlPlane) {
	a, b := cp.Servers()[0], cp.Servers()[1]
	for _, address := range []string{a.Address(), b.Address()} {
		conn, err := a.host.DialContext(t.Context(), "tcp", net.JoinHostPort(address, "6443"))
		must(t, err)
		if from := conn.LocalAddr().(*net.TCPAddr).IP.String(); from != a.Address() {
			t.Errorf("a connection from host %s to %s comes from %s", a.Host(), address, from)
		}
		must(t, conn.Close())
	}
	if conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", "6443"), time.Second); err == nil {
		must(t, conn.Close())
		t.Error("a server listens where this process is")
	}
}

// servedBy counts which servers answer a few clients of config, each with a connection of its own.
func servedBy(t *testing.T, cp *ControlPlane, config *rest.Config) sets.Set[string] {
	t.Helper()
	const user, clients = "wanderer", 6
	since := time.Now()
	for range clients {
		one := rest.CopyConfig(config)
		// A dialer of its own keeps a client from sharing a connection with others of the same configuration.
		one.Dial = (&net.Dialer{}).DialContext
		client := clientFor(t, one)
		_, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		must(t, err)
		client.CoreV1().RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
	}
	servers := sets.New[string]()
	eventually(t, "all requests are in the audit logs", func(context.Context) error {
		counts, err := cp.Requests(RequestFilter{Users: []string{user}, Since: since, Verbs: []string{"list"}})
		if err != nil {
			return err
		}
		if total := counts.Total(); total < clients { // A client may repeat its request.
			return fmt.Errorf("%d of %d requests", total, clients)
		}
		for kind := range counts {
			servers.Insert(kind.Server)
		}
		return nil
	})
	return servers
}

func checkBalancer(t *testing.T, cp *ControlPlane) {
	config := cp.Config("wanderer", adminGroup)
	allAnswer := func() {
		t.Helper()
		eventually(t, "all servers answer", func(context.Context) error {
			if servers := servedBy(t, cp, config); servers.Len() != 3 {
				return fmt.Errorf("of three servers only %v answered", sets.List(servers))
			}
			return nil
		})
	}
	allAnswer()
	cp.Balancer().SetBackends(cp.Servers()[1])
	if diff := cmp.Diff([]string{"apiserver-2"}, sets.List(servedBy(t, cp, config))); diff != "" {
		t.Errorf("servers behind a restricted balancer (-want +got):\n%s", diff)
	}
	cp.Balancer().SetBackends()
	allAnswer()
}

// checkOutside can only look at the addresses: a test runs inside. The command's tests come from outside.
func checkOutside(t *testing.T, cp *ControlPlane) {
	all, err := cp.OutsideConfig(adminUser, adminGroup)
	must(t, err)
	again, err := cp.OutsideConfig("someone")
	must(t, err)
	one, err := cp.Servers()[0].OutsideConfig(adminUser, adminGroup)
	must(t, err)
	if all.Host != again.Host || all.Host == one.Host || !strings.HasPrefix(one.Host, "https://127.0.0.1:") {
		t.Errorf("the ways in are %s, %s, %s", all.Host, again.Host, one.Host)
	}
}

func checkKillAndRestart(t *testing.T, cp *ControlPlane) {
	s := cp.Servers()[0]
	identity, address := s.Identity(), s.Address()
	must(t, s.Kill())
	_, err := clientFor(t, cp.AdminConfig()).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		eventually(t, "others answer", func(ctx context.Context) error {
			_, err := clientFor(t, cp.AdminConfig()).CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			return err
		})
	}
	must(t, s.Restart(func(spec *Server) { spec.ExtraArgs = append(spec.ExtraArgs, "--max-requests-inflight=321") }))
	if s.Identity() != identity || s.Address() != address {
		t.Errorf("the server came back as %s at %s", s.Identity(), s.Address())
	}
	if log := s.Process().Log(); !strings.Contains(log, "--max-requests-inflight=321") {
		t.Error("the server came back without the new flag")
	}
	client := clientFor(t, cp.Servers()[1].Config(adminUser, adminGroup))
	eventually(t, "the server's identity is renewed", func(ctx context.Context) error {
		_, err := client.CoordinationV1().Leases("kube-system").Get(ctx, identity, metav1.GetOptions{})
		return err
	})
}

func checkPause(t *testing.T, cp *ControlPlane) {
	s := cp.Servers()[1]
	must(t, s.Pause())
	state, err := processState(s.Process().Pid())
	must(t, err)
	if state != 'T' {
		t.Errorf("the process of a paused server is in state %c", state)
	}
	config := s.Config(adminUser, adminGroup)
	config.Timeout = time.Second
	if _, err := clientFor(t, config).Discovery().ServerVersion(); err == nil {
		t.Error("a paused server answered")
	}
	eventually(t, "the balancer notices", func(ctx context.Context) error {
		cp.Balancer().mu.Lock()
		defer cp.Balancer().mu.Unlock()
		if cp.Balancer().healthy.Has(s) {
			return fmt.Errorf("%s still counts as ready", s.Name())
		}
		return nil
	})
	if servers := servedBy(t, cp, cp.Config("wanderer", adminGroup)); servers.Has(s.Name()) {
		t.Errorf("a paused server is among those that answered: %v", sets.List(servers))
	}
	must(t, s.Resume())
	must(t, s.Ready(t.Context()))
}

func checkCut(t *testing.T, cp *ControlPlane) {
	s := cp.Servers()[2]
	must(t, s.Cut())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.checkReady(ctx); err == nil {
		t.Error("a cut server answered")
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if conn, err := s.host.DialContext(ctx, "tcp", net.JoinHostPort(cp.Etcd().Address(), "2379")); err == nil {
		must(t, conn.Close())
		t.Error("a cut server reached etcd")
	}
	must(t, s.Heal())
	must(t, s.Ready(t.Context()))
}

func checkEtcdCut(t *testing.T, cp *ControlPlane) {
	must(t, cp.Etcd().Cut())
	config := cp.Servers()[0].Config(adminUser, adminGroup)
	config.Timeout = time.Second
	client := clientFor(t, config).CoreV1().ConfigMaps("default")
	if _, err := client.Get(t.Context(), "any", metav1.GetOptions{}); err == nil || apierrors.IsNotFound(err) {
		t.Error("a server answered without etcd")
	}
	must(t, cp.Etcd().Heal())
	for _, s := range cp.Servers() {
		must(t, s.Ready(t.Context()))
	}
}

func checkAddServer(t *testing.T, cp *ControlPlane) {
	added, err := cp.AddServer(t.Context(), StorageVersionAPI(Server{AllowAll: true}))
	must(t, err)
	client := clientFor(t, added.Config(adminUser, adminGroup))
	eventually(t, "the new server has its entries", func(ctx context.Context) error {
		v, err := client.InternalV1alpha1().StorageVersions().Get(ctx, "apps.deployments", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !entriesOf(*v).Has(added.Identity()) {
			return fmt.Errorf("only %v have entries", sets.List(entriesOf(*v)))
		}
		return nil
	})
	if _, err := cp.AddServer(t.Context(), Server{Name: added.Name()}); err == nil {
		t.Error("two servers have one name")
	}
}

func checkPrograms(t *testing.T, cp *ControlPlane) {
	p := cp.RunOn(t, "elsewhere", "who", "/bin/sh", "-c", "cat /proc/sys/kernel/hostname; sleep 600 & echo child $!; wait")
	var said []string
	eventually(t, "the program says where it is", func(context.Context) error {
		if said = regexp.MustCompile(`(?m)^(.*)\nchild (\d+)$`).FindStringSubmatch(p.Log()); said == nil {
			return fmt.Errorf("the log is %q", p.Log())
		}
		return nil
	})
	if said[1] != "elsewhere" {
		t.Errorf("the program is on host %q", said[1])
	}
	child, err := strconv.Atoi(said[2])
	must(t, err)
	must(t, p.Pause())
	must(t, p.Stop())
	if p.Running() {
		t.Error("a stopped program runs")
	}
	eventually(t, "its child is gone too", func(context.Context) error { return gone(child) })

	// A program where this process is, reached from a host.
	listener, err := net.Listen("tcp", net.JoinHostPort(cp.ListenAddress(), "0"))
	must(t, err)
	here := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	webhook := &http.Server{Handler: here, ReadHeaderTimeout: time.Second}
	go func() { _ = webhook.Serve(listener) }()
	t.Cleanup(func() { must(t, webhook.Close()) })
	host, err := cp.Host("elsewhere")
	must(t, err)
	client := &http.Client{Transport: &http.Transport{DialContext: host.DialContext, DisableKeepAlives: true}}
	response, err := client.Get("http://" + listener.Addr().String())
	must(t, err)
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "here" {
		t.Errorf("a host reached this process with %q, %v", body, err)
	}
	if path := p.LogPath(); path != filepath.Join(cp.Dir(), "logs", "who.log") {
		t.Errorf("the log is at %s", path)
	}
}
