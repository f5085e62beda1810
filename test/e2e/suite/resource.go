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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

const (
	resourcePlural = "gadgets"
	resourceKind   = "Gadget"
	// probe is an object that no admission policy of the suite is about.
	probe = "probe"
)

// Resource is a resource that a spec migrates.
type Resource struct {
	schema.GroupResource
	Kind string
	// Version is the version at which the suite reads and writes it.
	Version string
	// Namespaced is false for resources of the cluster.
	Namespaced bool
}

// At is the resource at the version of the suite.
func (r Resource) At() schema.GroupVersionResource { return r.WithVersion(r.Version) }

// Hash is the storage version hash of the encoding of a version.
func (r Resource) Hash(version string) string {
	return discovery.StorageVersionHash(r.Group, version, r.Kind)
}

// Encoding is the encoding of a version, as it is in stored bytes.
func (r Resource) Encoding(version string) string {
	return schema.GroupVersion{Group: r.Group, Version: version}.String()
}

// DefineOption changes a definition before it is created.
type DefineOption func(*apiextensionsv1.CustomResourceDefinition)

// ClusterScoped makes a resource without namespaces.
func ClusterScoped(d *apiextensionsv1.CustomResourceDefinition) {
	d.Spec.Scope = apiextensionsv1.ClusterScoped
}

// Define creates a CustomResourceDefinition that serves these versions and stores the first of them, prepares the
// implementation for it, and returns when the resource is served. The last version is the one that the suite uses.
func (c *Case) Define(ctx context.Context, versions []string, options ...DefineOption) Resource {
	ginkgo.GinkgoHelper()
	r := Resource{
		GroupResource: schema.GroupResource{Group: "g" + c.suffix + "." + groupDomain, Resource: resourcePlural},
		Kind:          resourceKind, Version: versions[len(versions)-1],
	}
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: r.String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: r.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: r.Resource, Kind: r.Kind},
		},
	}
	for i, version := range versions {
		definition.Spec.Versions = append(definition.Spec.Versions, NewVersion(version, i == 0))
	}
	for _, option := range options {
		option(definition)
	}
	r.Namespaced = definition.Spec.Scope == apiextensionsv1.NamespaceScoped
	c.Prepare(ctx, r)
	_, err := c.definitions().Create(ctx, definition, metav1.CreateOptions{})
	c.Must(err)
	cleanUp(func(ctx context.Context) error {
		return ignoreMissing(c.definitions().Delete(ctx, definition.Name, metav1.DeleteOptions{}))
	})
	c.awaitServed(ctx, r, versions[0])
	return r
}

// NewVersion is a version whose objects may have any fields.
func NewVersion(name string, stored bool) apiextensionsv1.CustomResourceDefinitionVersion {
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Served: true, Storage: stored,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", XPreserveUnknownFields: ptr.To(true),
		}},
	}
}

// Prepare lets the implementation prepare for a resource. If that gave it a permission, Prepare returns when all API
// servers know it.
func (c *Case) Prepare(ctx context.Context, r Resource) {
	ginkgo.GinkgoHelper()
	undo, err := c.Implementation.Prepare(ctx, r.At())
	if undo != nil {
		cleanUp(undo)
	}
	c.Must(err)
	user := c.Options.Identity
	if undo == nil || user == "" {
		return
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: GroupsOf(user), ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "patch", Group: r.Group, Resource: r.GroupResource.Resource,
		},
	}}
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("%s may not patch %s yet", user, r)
		}
		return err
	})
}

// awaitServed waits until all servers serve a resource and say that they store that version.
func (c *Case) awaitServed(ctx context.Context, r Resource, stored string) {
	ginkgo.GinkgoHelper()
	c.Everywhere(ctx, func(_ context.Context, config *rest.Config) error {
		hash, err := discoveredHash(config, r)
		if err == nil && hash != r.Hash(stored) {
			err = fmt.Errorf("the discovery document of %s does not say yet that %s is stored", r, stored)
		}
		return err
	})
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		_, err = client.Resource(r.At()).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// discoveredHash is the storage version hash in the discovery document of one server.
func discoveredHash(config *rest.Config, r Resource) (string, error) {
	client, err := clientdiscovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", err
	}
	list, err := client.ServerResourcesForGroupVersion(r.At().GroupVersion().String())
	if err != nil {
		return "", err
	}
	for _, found := range list.APIResources {
		if found.Name == r.Resource {
			return found.StorageVersionHash, nil
		}
	}
	return "", fmt.Errorf("%s is not in the discovery document", r)
}

// AwaitDisagreement waits until new connections lead to servers that store a resource in each of these versions.
func (c *Case) AwaitDisagreement(ctx context.Context, r Resource, versions ...string) {
	ginkgo.GinkgoHelper()
	c.Eventually(ctx, func(context.Context) error {
		var hashes []string
		for range connections {
			hash, err := discoveredHash(c.NewConnection(), r)
			if err != nil {
				return err
			}
			hashes = append(hashes, hash)
		}
		for _, version := range versions {
			if !slices.Contains(hashes, r.Hash(version)) {
				return fmt.Errorf("no new connection leads to a server that stores %s", r.Encoding(version))
			}
		}
		return nil
	})
}

// Store makes the API servers store another version, and returns when they do.
func (c *Case) Store(ctx context.Context, r Resource, version string) {
	ginkgo.GinkgoHelper()
	c.Step("storing %s", r.Encoding(version))
	object := c.create(ctx, r, c.Namespace, probe)
	c.Must(c.StoreUnseen(ctx, r, version))
	c.awaitServed(ctx, r, version)
	// Discovery may be ahead of the handlers. A server whose handler has not followed stores the probe as before, so that
	// a write on another one moves it again.
	last, moved := object.GetResourceVersion(), false
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		objects, err := objectsAt(config, r, c.Namespace)
		if err != nil {
			return err
		}
		written, err := objects.Patch(ctx, probe, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		if err != nil {
			return err
		}
		if now := written.GetResourceVersion(); now != last {
			last, moved = now, true
			return fmt.Errorf("%s was stored anew", probe)
		}
		if !moved {
			return fmt.Errorf("%s is not stored in %s yet", probe, version)
		}
		return nil
	})
}

// StoreUnseen makes the API servers store another version, and does not wait.
func (c *Case) StoreUnseen(ctx context.Context, r Resource, version string) error {
	return c.ChangeDefinition(ctx, r, func(d *apiextensionsv1.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			d.Spec.Versions[i].Storage = d.Spec.Versions[i].Name == version
		}
	})
}

// ChangeDefinition changes the definition of a resource.
func (c *Case) ChangeDefinition(
	ctx context.Context, r Resource, change func(*apiextensionsv1.CustomResourceDefinition),
) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := c.definitions().Get(ctx, r.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(live)
		_, err = c.definitions().Update(ctx, live, metav1.UpdateOptions{})
		return err
	})
}

// DropVersions removes versions from a definition. API servers refuse that while status.storedVersions has them.
func (c *Case) DropVersions(ctx context.Context, r Resource, versions ...string) error {
	return c.ChangeDefinition(ctx, r, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions = slices.DeleteFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return slices.Contains(versions, v.Name)
		})
	})
}

// StoredVersions is status.storedVersions of the definition of a resource.
func (c *Case) StoredVersions(ctx context.Context, r Resource) ([]string, error) {
	live, err := c.definitions().Get(ctx, r.String(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return live.Status.StoredVersions, nil
}

// Created is when the definition of a resource was created, by the clock of an API server.
func (c *Case) Created(ctx context.Context, r Resource) (time.Time, error) {
	live, err := c.definitions().Get(ctx, r.String(), metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	return live.CreationTimestamp.Time, nil
}

// SetStoredVersions sets status.storedVersions, as people do by hand.
func (c *Case) SetStoredVersions(ctx context.Context, r Resource, versions ...string) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"storedVersions": versions}})
	if err != nil {
		return err
	}
	_, err = c.definitions().Patch(ctx, r.String(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// Undefine deletes the definition of a resource, and waits until it is gone and no API server serves the resource.
func (c *Case) Undefine(ctx context.Context, r Resource) {
	ginkgo.GinkgoHelper()
	c.Must(ignoreMissing(c.definitions().Delete(ctx, r.String(), metav1.DeleteOptions{})))
	c.Eventually(ctx, func(ctx context.Context) error {
		_, err := c.definitions().Get(ctx, r.String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("the definition of %s still exists", r), err)
	})
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		_, err = client.Resource(r.At()).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("%s is still served", r), err)
	})
}
