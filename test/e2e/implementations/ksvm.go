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

package implementations

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

// KSVM is kube-storage-version-migrator: its migrator and its trigger.
type KSVM struct{ migrationAPI }

// NewKSVM makes an adapter to kube-storage-version-migrator.
func NewKSVM(config *rest.Config) (*KSVM, error) {
	api, err := newMigrationAPI(config)
	if err != nil {
		return nil, err
	}
	return &KSVM{api}, nil
}

// Name is the name of the project.
func (k *KSVM) Name() string { return "kube-storage-version-migrator" }

// Features are what its documents claim.
func (k *KSVM) Features() suite.Features {
	return suite.Features{suite.FeatureKnowledge, suite.FeatureTrigger}
}

// Prepare does nothing: its role allows everything.
func (k *KSVM) Prepare(context.Context, schema.GroupVersionResource) (func(context.Context) error, error) {
	return nil, nil
}
