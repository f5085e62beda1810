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
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/migration/crds"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	// createdWithin is how long InstallMigrationAPI tries to create a definition.
	createdWithin = 5 * time.Minute
	// servedWithin is how long a server may take to serve a definition.
	servedWithin = 10 * time.Minute
	servedPoll   = 250 * time.Millisecond
)

// InstallMigrationAPI creates the definitions of the migration API where config leads, and returns when they are
// served: an API server that is stopped between its two writes about a new definition never comes to the second.
func InstallMigrationAPI(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	objects, err := crds.Objects()
	if err != nil {
		return err
	}
	definitions := client.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	var last error
	for _, object := range objects {
		// A busy server may not answer in time, or create a definition without an answer.
		created := func(ctx context.Context) (bool, error) {
			_, last = definitions.Create(ctx, object, metav1.CreateOptions{})
			return last == nil || apierrors.IsAlreadyExists(last), nil
		}
		if err := wait.PollUntilContextTimeout(ctx, servedPoll, createdWithin, true, created); err != nil {
			return fmt.Errorf("creating the definition %q: %w: %w", object.GetName(), err, last)
		}
	}
	documents, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client for discovery: %w", err)
	}
	done := func(ctx context.Context) (bool, error) {
		last = served(ctx, client, documents)
		return last == nil, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, servedPoll, servedWithin, true, done); err != nil {
		return fmt.Errorf("waiting until the migration API is served: %w: %w", err, last)
	}
	return nil
}

// served returns why the migration API is not served yet, or is not in the discovery document, which a server writes
// on its own.
func served(ctx context.Context, client dynamic.Interface, documents discovery.DiscoveryInterface) error {
	document, err := documents.ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
	if err != nil {
		return err
	}
	for _, name := range []string{"storagestates", "storageversionmigrations"} {
		named := func(r metav1.APIResource) bool { return r.Name == name }
		if !slices.ContainsFunc(document.APIResources, named) {
			return fmt.Errorf("%s are not in the discovery document", name)
		}
		resource := v1alpha1.SchemeGroupVersion.WithResource(name)
		if _, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return err
		}
	}
	return nil
}
