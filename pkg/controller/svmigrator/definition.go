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

package svmigrator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// definition is the little of a CustomResourceDefinition that is needed: schemas make them large.
type definition struct {
	Metadata struct {
		Name            string    `json:"name"`
		UID             types.UID `json:"uid"`
		ResourceVersion string    `json:"resourceVersion"`
		Generation      int64     `json:"generation"`
	} `json:"metadata"`
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Kind string `json:"kind"`
		} `json:"names"`
		Versions []struct {
			Name    string `json:"name"`
			Served  bool   `json:"served"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		StoredVersions []string `json:"storedVersions"`
	} `json:"status"`
}

func definitionPath(name string, subresources ...string) []string {
	return append([]string{"apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions", name}, subresources...)
}

func readDefinition(ctx context.Context, client rest.Interface, resource schema.GroupResource) (*definition, error) {
	result := client.Get().AbsPath(definitionPath(resource.String())...).SetHeader("Accept", runtime.ContentTypeJSON).MaxRetries(0).Timeout(readTimeout).Do(ctx)
	err := result.Error() // has the API server's words, and that of Raw has not
	var raw []byte
	if err == nil {
		raw, err = result.Raw()
	}
	if err != nil {
		return nil, fmt.Errorf("getting the CustomResourceDefinition %q: %w", resource, err)
	}
	d := &definition{}
	if err := json.Unmarshal(raw, d); err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinition %q: %w", resource, err)
	}
	return d, nil
}

func (d *definition) storageVersion() string {
	for _, version := range d.Spec.Versions {
		if version.Storage {
			return version.Name
		}
	}
	return ""
}

func (d *definition) servedVersions() []string {
	var served []string
	for _, version := range d.Spec.Versions {
		if version.Served {
			served = append(served, version.Name)
		}
	}
	return served
}

func (d *definition) hash() string {
	return storageversion.Hash(schema.GroupVersion{Group: d.Spec.Group, Version: d.storageVersion()}, d.Spec.Names.Kind)
}

// prunable says whether versions are listed as stored that are not the storage version.
func (d *definition) prunable() bool {
	return !slices.Equal(d.Status.StoredVersions, []string{d.storageVersion()})
}

// prune leaves only the storage version in status.storedVersions. It fails with a conflict if the definition was written
// since it was read, for then the storage version may have been another one in between.
func (d *definition) prune(ctx context.Context, client rest.Interface) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": precondition{UID: d.Metadata.UID, ResourceVersion: d.Metadata.ResourceVersion},
		"status":   map[string]any{"storedVersions": []string{d.storageVersion()}},
	})
	if err != nil {
		return fmt.Errorf("making a patch: %w", err)
	}
	return client.Patch(types.MergePatchType).AbsPath(definitionPath(d.Metadata.Name, "status")...).
		SetHeader("Accept", acceptJSONObject).MaxRetries(0).Timeout(patchTimeout).
		Param("fieldManager", fieldManager).Body(patch).Do(ctx).Error()
}
