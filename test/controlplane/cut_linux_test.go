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
	"io"
	"net"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// checkCutFrom cuts a client's host from one server, and then from the balancer.
func checkCutFrom(t *testing.T, cp *ControlPlane) {
	client, err := cp.Host("client")
	must(t, err)
	near, far := cp.Servers()[0], cp.Servers()[1]
	hostOfFar, err := cp.Host(far.Host())
	must(t, err)
	// Without HTTP/2 a connection is one request's at a time, so that a lost one does not hold up the next.
	ask := func(config *rest.Config, timeout time.Duration) error {
		config.Dial, config.Timeout = client.DialContext, timeout
		config.NextProtos = []string{"http/1.1"}
		clients := clientFor(t, config)
		defer clients.CoreV1().RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
		_, err := clients.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err
	}
	open := echo(t, client, hostOfFar)
	eventually(t, "the connection is open", func(context.Context) error { return open("before") })

	must(t, client.CutFrom(hostOfFar))
	must(t, ask(near.Config(adminUser, adminGroup), testTimeout))
	if err := ask(far.Config(adminUser, adminGroup), time.Second); err == nil {
		t.Error("a server answers a host that is cut from it")
	}
	eventually(t, "others do reach it", far.checkReady)
	if err := open("lost"); err == nil {
		t.Error("a connection carries what is sent over a cut wire")
	}
	must(t, client.HealFrom(hostOfFar))
	must(t, client.HealFrom(hostOfFar))
	eventually(
		t,
		"the server answers again",
		func(context.Context) error { return ask(far.Config(adminUser, adminGroup), testTimeout) },
	)
	eventually(t, "the open connection goes on", func(context.Context) error { return open("after") })

	must(t, cp.Home().CutFrom(client))
	if err := ask(cp.AdminConfig(), time.Second); err == nil {
		t.Error("the balancer answers a host that is cut from it")
	}
	must(t, ask(far.Config(adminUser, adminGroup), testTimeout))
	must(t, cp.Home().HealFrom(client))
	eventually(t, "the balancer answers again", func(context.Context) error { return ask(cp.AdminConfig(), testTimeout) })
}

// echo opens a connection from one host to another, which sends back what it gets, and returns what sends a word over
// it and back.
func echo(t *testing.T, from, to *Host) func(word string) error {
	t.Helper()
	listener, err := to.Listen("tcp", net.JoinHostPort(to.Address(), "0"))
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	go func() {
		server, err := listener.Accept()
		if err != nil {
			return
		}
		defer server.Close()
		_, _ = io.Copy(server, server) // until the client ends
	}()
	client, err := from.DialContext(t.Context(), "tcp", listener.Addr().String())
	must(t, err)
	t.Cleanup(func() { must(t, client.Close()) })
	var owed string // what was sent and has not come back
	return func(word string) error {
		if _, err := io.WriteString(client, word); err != nil {
			return err
		}
		owed += word
		must(t, client.SetReadDeadline(time.Now().Add(time.Second)))
		answer := make([]byte, len(owed))
		n, err := io.ReadFull(client, answer)
		if got := string(answer[:n]); got != owed[:n] {
			t.Fatalf("%q came back of %q", got, owed)
		}
		owed = owed[n:]
		return err
	}
}
