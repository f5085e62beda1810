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

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// kube-storage-version-migrator has CustomResourceDefinitions of the same names. Where those are installed, the API
// server drops fields that the controllers write, and says nothing. A state would lose its epoch with each write, and
// the trigger would replace it and write it again, without end. So the manager looks for a field of each definition
// before it makes a controller. When an answer lacks what it sent later, the manager ends. Its successor waits.

// errFieldsDropped ends the manager.
var errFieldsDropped = errors.New("the API server dropped fields of the status that it was sent: the " +
	"CustomResourceDefinitions of " + migrationv1alpha1.GroupName + " were replaced by others, such as those of " +
	"kube-storage-version-migrator. Apply those of this release")

// schemaNode is what an OpenAPI document says about the fields of an object.
type schemaNode struct {
	Properties map[string]schemaNode     `json:"properties"`
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// has reports whether the schema has a field.
func (n schemaNode) has(path []string) bool {
	for _, name := range path {
		next, exists := n.Properties[name]
		if !exists {
			return false
		}
		n = next
	}
	return true
}

// definition is what the API server knows about the kind of a Need.
type definition string

const (
	notServed definition = "not served"
	another   definition = "another definition"
	fits      definition = "fits"
)

// definitionOf finds out whether the API server serves the resource of a Need, with the field.
func definitionOf(client discovery.DiscoveryInterface, need Need) (definition, error) {
	if served, err := discovery.IsResourceEnabled(client, need.Resource); err != nil || !served {
		return notServed, err
	}
	if need.Field == "" {
		return fits, nil
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		return notServed, fmt.Errorf("listing the OpenAPI documents: %w", err)
	}
	path, exists := paths["apis/"+need.Resource.GroupVersion().String()]
	if !exists {
		return notServed, nil // The API server makes the document a little later.
	}
	raw, err := path.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return notServed, fmt.Errorf("reading an OpenAPI document: %w", err)
	}
	var document struct {
		Components struct {
			Schemas map[string]schemaNode `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return notServed, fmt.Errorf("decoding an OpenAPI document: %w", err)
	}
	for _, node := range document.Components.Schemas {
		switch {
		case !slices.Contains(node.Kinds, need.Resource.GroupVersion().WithKind(need.Kind)):
		case node.has(strings.Split(need.Field, ".")):
			return fits, nil
		default:
			return another, nil
		}
	}
	return notServed, nil
}

// checkedClient ends the manager when the answer to the write of a status lacks the field without which a definition
// does not fit.
type checkedClient struct {
	migrationclient.MigrationV1alpha1Interface
	fail context.CancelCauseFunc
}

func (c checkedClient) StorageStates() migrationclient.StorageStateInterface {
	return checkedStates{c.MigrationV1alpha1Interface.StorageStates(), c.fail}
}

func (c checkedClient) StorageVersionMigrations() migrationclient.StorageVersionMigrationInterface {
	return checkedMigrations{c.MigrationV1alpha1Interface.StorageVersionMigrations(), c.fail}
}

type checkedStates struct {
	migrationclient.StorageStateInterface
	fail context.CancelCauseFunc
}

func (c checkedStates) UpdateStatus(
	ctx context.Context, sent *migrationv1alpha1.StorageState, options metav1.UpdateOptions,
) (*migrationv1alpha1.StorageState, error) {
	stored, err := c.StorageStateInterface.UpdateStatus(ctx, sent, options)
	if err == nil && (stored.Status.Epoch != sent.Status.Epoch ||
		sent.Status.CurrentSinceTime != nil && stored.Status.CurrentSinceTime == nil) {
		c.fail(errFieldsDropped)
		return nil, errFieldsDropped
	}
	return stored, err
}

type checkedMigrations struct {
	migrationclient.StorageVersionMigrationInterface
	fail context.CancelCauseFunc
}

func (c checkedMigrations) UpdateStatus(
	ctx context.Context, sent *migrationv1alpha1.StorageVersionMigration, options metav1.UpdateOptions,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	stored, err := c.StorageVersionMigrationInterface.UpdateStatus(ctx, sent, options)
	if err == nil && sent.Status.Target != nil && stored.Status.Target == nil {
		c.fail(errFieldsDropped)
		return nil, errFieldsDropped
	}
	return stored, err
}
