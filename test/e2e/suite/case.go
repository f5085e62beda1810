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

package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	poll           = 500 * time.Millisecond
	suffixLength   = 8
	groupDomain    = "conformance.example.com"
	namespaceStart = "svm-conformance-"
	// connections is how often a question is asked that all API servers have to answer alike: each time on a new
	// connection, which a load balancer hands to another server. With three servers, one that hands them out at random
	// leaves one out in one of forty cases.
	connections = 12
)

// Case is what one spec works with.
type Case struct {
	Options        Options
	Implementation Implementation
	Kube           kubernetes.Interface
	Dynamic        dynamic.Interface
	Extensions     apiextensions.Interface
	// Control ends and starts processes; nil without --control.
	Control Control
	// Namespace is the namespace of this spec. CreateNamespaces creates it.
	Namespace string

	config *rest.Config
	etcd   *clientv3.Client
	suffix string
}

// newCase makes the clients that all specs of a process share.
func newCase(o Options, config *rest.Config, implementation Implementation) (*Case, error) {
	c := &Case{Options: o, Implementation: implementation, config: config}
	var errs [4]error
	c.Kube, errs[0] = kubernetes.NewForConfig(config)
	c.Dynamic, errs[1] = dynamic.NewForConfig(config)
	c.Extensions, errs[2] = apiextensions.NewForConfig(config)
	c.etcd, errs[3] = o.etcdClient()
	if o.Control != "" {
		c.Control = NewRemoteControl(o.Control)
	}
	return c, errors.Join(errs[:]...)
}

func (c *Case) close() error {
	if c.etcd == nil {
		return nil
	}
	return c.etcd.Close()
}

// begin makes names of a spec's own.
func (c *Case) begin() *Case {
	own := *c
	own.suffix = rand.String(suffixLength)
	own.Namespace = namespaceStart + own.suffix
	return &own
}

// Step says what follows, in the log of the spec.
func (c *Case) Step(format string, args ...any) { ginkgo.By(fmt.Sprintf(format, args...)) }

// Must fails the spec on an error.
func (c *Case) Must(err error) {
	ginkgo.GinkgoHelper()
	if err != nil {
		ginkgo.Fail(err.Error())
	}
}

// Fail fails the spec.
func (c *Case) Fail(format string, args ...any) {
	ginkgo.GinkgoHelper()
	ginkgo.Fail(fmt.Sprintf(format, args...))
}

// Has tells whether the run and its cluster meet a need.
func (c *Case) Has(ctx context.Context, need Need) bool {
	switch need {
	case NeedEtcd:
		return c.etcd != nil
	case NeedControl:
		return c.Control != nil
	case NeedServers:
		if c.Control == nil {
			return false
		}
		names, err := c.Control.Servers(ctx)
		c.Must(err)
		return len(names) > 1
	case NeedIdentity:
		return c.Options.Identity != ""
	case NeedWebhooks:
		return c.Options.WebhookAddress != ""
	case NeedStorageVersions:
		group := apiserverinternalv1alpha1.SchemeGroupVersion.String()
		_, err := c.Kube.Discovery().ServerResourcesForGroupVersion(group)
		c.Must(ignoreMissing(err))
		return err == nil
	}
	return false
}

// Eventually waits until check has nothing to complain about, for the patience of the run.
func (c *Case) Eventually(ctx context.Context, check func(ctx context.Context) error) {
	ginkgo.GinkgoHelper()
	var last error
	c.explained(&last).Eventually(ctx, func(ctx context.Context) error { last = check(ctx); return last }).
		WithTimeout(c.Options.Patience).WithPolling(poll).Should(gomega.Succeed())
}

// explained makes assertions that fail with the words of the last error alone. Gomega would print the error as Go sees
// it, too.
func (c *Case) explained(last *error) gomega.Gomega {
	return gomega.NewGomega(func(gomega string, _ ...int) {
		ginkgo.GinkgoHelper()
		if *last == nil {
			c.Fail("%s", gomega)
		}
		what, _, _ := strings.Cut(gomega, "\n")
		c.Fail("%s\n%v", what, *last)
	})
}

// Consistently wants check to have nothing to complain about for that long. Single looks may fail.
func (c *Case) Consistently(ctx context.Context, period time.Duration, check func(ctx context.Context) error) {
	ginkgo.GinkgoHelper()
	looks := 0
	var last error
	look := func(ctx context.Context) error {
		err := check(ctx)
		if err == nil {
			looks++
		}
		last = IgnoreFlakes(err)
		return last
	}
	c.explained(&last).Consistently(ctx, look).WithTimeout(period).WithPolling(poll).Should(gomega.Succeed())
	if looks == 0 {
		c.Fail("no look succeeded in %s", period)
	}
}

// IgnoreFlakes drops errors that say nothing about the implementation: the connection failed, or a server had no time.
func IgnoreFlakes(err error) error {
	var network net.Error
	switch {
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF),
		apierrors.IsTimeout(err), apierrors.IsServerTimeout(err),
		apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err):
		return nil
	}
	return err
}

// OutcomeUnknown tells whether a request that a client does not repeat by itself may have been done although it ended
// with this error. etcd says that a request timed out, and a server that it is an internal error, if etcd stood still.
func OutcomeUnknown(err error) bool {
	return err != nil && (IgnoreFlakes(err) == nil ||
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "etcdserver: request timed out"))
}

// Stop makes an error end Eventually at once.
func Stop(err error) error { return gomega.StopTrying(err.Error()) }

// CreateNamespaces creates the namespace of the spec, and others that begin with its name and end with these words. It
// returns all of them.
func (c *Case) CreateNamespaces(ctx context.Context, words ...string) []string {
	ginkgo.GinkgoHelper()
	names := []string{c.Namespace}
	for _, word := range words {
		names = append(names, c.Namespace+"-"+word)
	}
	for _, name := range names {
		_, err := c.Kube.CoreV1().Namespaces().
			Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		c.Must(err)
		cleanUp(func(ctx context.Context) error {
			return ignoreMissing(c.Kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
		})
	}
	return names
}

// Everywhere waits until check succeeds on several new connections in a row. What one API server knows already, another
// may learn a moment later. check makes one client: a second one would have a connection of its own.
func (c *Case) Everywhere(ctx context.Context, check func(ctx context.Context, config *rest.Config) error) {
	ginkgo.GinkgoHelper()
	c.Eventually(ctx, func(ctx context.Context) error {
		for range connections {
			if err := check(ctx, c.NewConnection()); err != nil {
				return err
			}
		}
		return nil
	})
}

// NewConnection is the configuration for one client with a connection of its own. A load balancer may hand it to
// another server than the last one.
func (c *Case) NewConnection() *rest.Config {
	config := rest.CopyConfig(c.config)
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	config.Dial = dialer.DialContext // Clients with a dialer share no connections.
	return config
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
