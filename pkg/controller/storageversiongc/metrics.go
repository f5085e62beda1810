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

package storageversiongc

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

const subsystem = "storage_version_garbage_collector"

var (
	entriesRemoved = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "entries_removed_total",
		Help:           "Number of entries removed because their API server is gone, with their StorageVersion or without.",
		StabilityLevel: metrics.ALPHA,
	})
	objectsDeleted = controller.NewCounter(subsystem, "objects_deleted_total",
		"Number of StorageVersions deleted because all their entries were stale (stale_entries) "+
			"or because they had none (no_entries).", "reason")
	syncsHeldBack = controller.NewCounter(subsystem, "syncs_held_back_total",
		"Number of syncs that left something for later, because a Lease was not missing for long enough (grace), "+
			"because the API server was too slow to prove that (gap), because an object had changed (conflict), "+
			"or because the API server refused a write (refused).", "reason")
)

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(entriesRemoved, objectsDeleted, syncsHeldBack) })
