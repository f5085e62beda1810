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
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
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
	// followers knows since when all servers have followed the definitions of custom resources.
	followers *followers
	// inTree logs whether in-tree migrations can be listed.
	inTree retry.Streak
}

// readAggregated reads what an aggregated server writes now, because there are no events about that. What is away and
// serves only other resources of a group must not hold up those of kube-apiserver.
func (e *environment) readAggregated(ctx context.Context, resource schema.GroupResource) error {
	class := e.observer.Observe(resource).Class
	if class == storageversion.BuiltIn || class == storageversion.Custom {
		return nil
	}
	return e.observer.ReadAggregated(ctx, resource.Group)
}

var definitions = documents.DefinitionsV1.WithResource("customresourcedefinitions").GroupResource()

// observedDefinition reads the definition of a resource. It returns an error if that is not the one that was observed
// last, or is gone: the watch of definitions may be late, or somebody has restored etcd.
func (e *environment) observedDefinition(
	ctx context.Context, observation storageversion.Observation,
) (*documents.Definition, error) {
	live, err := e.documents.Definition(ctx, observation.Resource)
	if controller.SaysMissing(err, definitions, observation.Resource.String()) {
		return nil, fmt.Errorf("there is no CustomResourceDefinition any more: %w", controller.ErrOutdated)
	}
	if err != nil {
		return nil, err
	}
	return live, checkObserved(live.Metadata.UID, live.Metadata.Generation, observation)
}

// checkObserved returns controller.ErrOutdated if a definition that was read is not the one that was observed last, and
// storageversion.ErrRestored if it is an earlier one.
func checkObserved(uid types.UID, generation int64, observation storageversion.Observation) error {
	last, _ := observation.Last()
	switch observed := last.Evidence.CustomResourceDefinition; {
	case observed == nil:
		return fmt.Errorf("the definition was not observed: %w", controller.ErrOutdated)
	case uid == observed.UID && generation < observed.Generation:
		return fmt.Errorf("the definition of %s has generation %d, and had %d: %w",
			observation.Resource, generation, observed.Generation, storageversion.ErrRestored)
	case uid != observed.UID, generation != observed.Generation:
		return fmt.Errorf("the CustomResourceDefinition has generation %d, and the manager has seen generation %d: %w",
			generation, observed.Generation, controller.ErrOutdated)
	}
	return nil
}
