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

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/storageversiongc"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

func newStorageVersionGCDescriptor() ControllerDescriptor {
	return ControllerDescriptor{
		Name:         names.StorageVersionGarbageCollectorController,
		Aliases:      []string{names.StorageVersionGarbageCollectorAlias},
		FeatureGates: []featuregate.Feature{features.StorageVersionGarbageCollector},
		// The StorageVersion API is alpha: most clusters do not serve it, and then there is no garbage.
		Needs: []Need{{Resource: apiserverinternalv1alpha1.SchemeGroupVersion.WithResource("storageversions"), Optional: true}},
		New: func(ctx context.Context, c ControllerContext) (Controller, error) {
			client, err := c.Client()
			if err != nil {
				return nil, err
			}
			return storageversiongc.NewStorageVersionGC(ctx, client, c.IdentityLeases, c.StorageVersions()), nil
		},
	}
}
