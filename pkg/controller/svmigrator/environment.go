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
	"time"

	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// readTimeout is for small documents.
const readTimeout = 15 * time.Second

// environment is what all migrations of a process share: clients, caches, the engine, the clock and the options.
type environment struct {
	client    migrationclient.MigrationV1alpha1Interface
	documents documents.Reader
	observer  Observer
	caches    *controller.Caches
	engine    *rewrite.Engine
	events    record.EventRecorderLogger
	clock     clock.WithTicker
	options   Options
	space     *space
	// inTree logs whether in-tree migrations can be listed.
	inTree retry.Streak
}
