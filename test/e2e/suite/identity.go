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
	"fmt"
	"strings"

	"github.com/onsi/ginkgo/v2"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	serviceAccount  = "system:serviceaccount:"
	serviceAccounts = "system:serviceaccounts"
	authenticated   = "system:authenticated"
)

// GroupsOf are the groups that a user is in by being what the name says.
func GroupsOf(user string) []string {
	rest, is := strings.CutPrefix(user, serviceAccount)
	if !is {
		return []string{authenticated}
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return []string{serviceAccounts, serviceAccounts + ":" + namespace, authenticated}
}

// As is a client for objects of a resource that acts as the identity of the implementation. It needs NeedIdentity.
func (c *Case) As(r Resource) (dynamic.ResourceInterface, error) {
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: c.Options.Identity, Groups: GroupsOf(c.Options.Identity)}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client as %s: %w", c.Options.Identity, err)
	}
	return client.Resource(r.At()).Namespace(c.Namespace), nil
}

// Webhooks is a server of webhooks that ends with the spec. It needs NeedWebhooks.
func (c *Case) Webhooks() *webhook.Server {
	ginkgo.GinkgoHelper()
	server, err := webhook.New(c.Options.WebhookAddress)
	c.Must(err)
	ginkgo.DeferCleanup(server.Close)
	return server
}

// IdlePolicy is a MutatingAdmissionPolicy that no binding puts into effect.
func (c *Case) IdlePolicy(i int) *admissionv1.MutatingAdmissionPolicy {
	none := Resource{Version: "v1", Kind: resourceKind}
	none.Group, none.Resource = "g"+c.suffix+"."+groupDomain, resourcePlural
	return newMutation(fmt.Sprintf("%s-%d", c.Namespace, i), none)
}
