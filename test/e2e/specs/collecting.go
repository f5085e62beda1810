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

package specs

import (
	"context"
	"errors"
	"fmt"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var collects = []suite.Feature{suite.FeatureGarbageCollection}

var collecting = []suite.Spec{
	{
		Name: "records-of-unknown-servers-go", Profile: suite.ProfileHA, Controllers: collector, Features: collects,
		Needs: []suite.Need{suite.NeedStorageVersions},
		Title: "A StorageVersion whose only entries are of servers that do not exist is deleted", Test: unknownServers,
	},
	{
		Name: "entries-go-with-their-server", Profile: suite.ProfileHA, Controllers: collector, Features: collects,
		Needs: []suite.Need{suite.NeedControl, suite.NeedStorageVersions}, Disruptive: true, Timeout: long,
		Title: "An entry stays while its server has a Lease, goes with that, and the common encoding follows",
		Test:  goneServers,
	},
}

// storageVersion creates a StorageVersion object with an entry of each of these servers.
func storageVersion(ctx context.Context, c *suite.Case, encodings map[string]string) string {
	client := c.Kube.InternalV1alpha1().StorageVersions()
	name := "conformance." + c.Namespace
	object := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: name}}
	created, err := client.Create(ctx, object, metav1.CreateOptions{})
	c.Must(err)
	c.CleanUp(func(ctx context.Context) error { return client.Delete(ctx, name, metav1.DeleteOptions{}) })
	for server, version := range encodings {
		created.Status.StorageVersions = append(created.Status.StorageVersions,
			apiserverinternalv1alpha1.ServerStorageVersion{
				APIServerID: server, EncodingVersion: version, DecodableVersions: []string{version},
			})
		created.Status.CommonEncodingVersion = ptr.To(version)
	}
	if len(encodings) > 1 {
		created.Status.CommonEncodingVersion = nil
	}
	_, err = client.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	c.Must(err)
	return name
}

func unknownServers(ctx context.Context, c *suite.Case) {
	name := storageVersion(ctx, c, map[string]string{"gone-" + c.Namespace: v1})
	c.Eventually(ctx, func(ctx context.Context) error {
		_, err := c.Kube.InternalV1alpha1().StorageVersions().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the StorageVersion still exists"), err)
	})
}

// lease makes a server look alive. A migrator that knows of a server which does not answer trusts no built-in resource.
func lease(ctx context.Context, c *suite.Case, server string) (end func(ctx context.Context) error) {
	client := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: server, Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"},
	}}
	object.Spec.HolderIdentity = ptr.To(server + "_conformance")
	object.Spec.LeaseDurationSeconds = ptr.To[int32](3600)
	object.Spec.RenewTime = ptr.To(metav1.NowMicro())
	_, err := client.Create(ctx, object, metav1.CreateOptions{})
	c.Must(err)
	end = func(ctx context.Context) error { return client.Delete(ctx, server, metav1.DeleteOptions{}) }
	c.CleanUp(end)
	return end
}

func goneServers(ctx context.Context, c *suite.Case) {
	first, second := "first-"+c.Namespace, "second-"+c.Namespace
	endFirst, endSecond := lease(ctx, c, first), lease(ctx, c, second)
	name := storageVersion(ctx, c, map[string]string{first: v1, second: v2})
	entries := func(want ...string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			live, err := c.Kube.InternalV1alpha1().StorageVersions().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			var got []string
			for _, entry := range live.Status.StorageVersions {
				got = append(got, entry.APIServerID)
			}
			if len(got) != len(want) {
				return fmt.Errorf("there are entries of %v, want %v", got, want)
			}
			if common := ptr.Deref(live.Status.CommonEncodingVersion, ""); len(want) == 1 && common != v2 {
				return fmt.Errorf("the common encoding is %q, want %s", common, v2)
			}
			return nil
		}
	}
	c.Consistently(ctx, while, entries(first, second))
	c.Must(endFirst(ctx))
	c.Eventually(ctx, entries(second))
	c.Must(endSecond(ctx))
	c.Eventually(ctx, func(ctx context.Context) error {
		if err := entries()(ctx); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the StorageVersion still exists"), err)
		}
		return nil
	})
}
