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
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
)

// Controller is what a constructor returns.
type Controller interface {
	// Run works until ctx ends. It returns when all its goroutines have ended, and writes nothing after that. If it
	// returns before ctx has ended, the manager ends.
	Run(ctx context.Context) error
}

// ControllerDescriptor is all that the manager knows about a controller before it runs. Another program gives
// descriptors of its own to NewControllerManagerCommand.
type ControllerDescriptor struct {
	// Name is the canonical name. It must be unique and never change.
	Name string
	// Aliases are other names that --controllers takes.
	Aliases []string
	// FeatureGates must all be on for the controller to run. features.DefaultMutableFeatureGate must have them.
	FeatureGates []featuregate.Feature
	// DisabledByDefault means that `*` in --controllers does not select it.
	DisabledByDefault bool
	// Needs are the resources that the API server must serve before the manager makes the controller.
	Needs []Need
	// Observes means that the controller depends on what the API servers write. The manager then observes them from the
	// start of the process, also while it stands by.
	Observes bool
	// Fenced means that the controller writes objects of others, and must not change them. While it runs, the manager
	// checks whether the fence stands, which refuses writes that would change an object.
	Fenced bool
	// Options are its flags, or nil if it has none.
	Options options.ControllerOptions
	// New makes the controller. It asks for the informers that the controller needs and starts nothing: the manager
	// starts the informers and then calls Run.
	New func(ctx context.Context, controllerContext ControllerContext) (Controller, error)
}

func isFenced(d ControllerDescriptor) bool { return d.Fenced }

func observes(d ControllerDescriptor) bool { return d.Observes }

// Need is a resource without which a controller cannot run.
type Need struct {
	// Resource must be served, with the fields that definition.Check wants.
	Resource schema.GroupVersionResource
	// Optional means that a normal cluster may lack the resource. Readiness does not wait for it.
	Optional bool
}

// String returns the resource as an administrator writes it, "<resource>.<version>.<group>".
func (n Need) String() string {
	return n.Resource.Resource + "." + n.Resource.Version + "." + n.Resource.Group
}

// NewControllerDescriptors returns the controllers of this project. One line registers one controller.
func NewControllerDescriptors() []ControllerDescriptor {
	return []ControllerDescriptor{
		newStorageVersionGCDescriptor(),
		newStorageVersionMigrationTriggerDescriptor(),
		newStorageVersionMigratorDescriptor(),
	}
}

// registry holds controllers whose names do not clash.
type registry struct {
	descriptors []ControllerDescriptor // ordered by name
	options     options.Controllers
}

// newRegistry returns a registry of the descriptors. It returns an error if one is incomplete, or if two claim one
// name.
func newRegistry(descriptors ...ControllerDescriptor) (*registry, error) {
	byName := func(a, b ControllerDescriptor) int { return strings.Compare(a.Name, b.Name) }
	r := &registry{
		descriptors: slices.SortedFunc(slices.Values(descriptors), byName),
		options: options.Controllers{
			Aliases: map[string]string{},
			Options: map[string]options.ControllerOptions{},
		},
	}
	owners := map[string]string{} // of names and aliases
	for _, d := range r.descriptors {
		if d.Name == "" || d.New == nil {
			return nil, fmt.Errorf("controller %q: a descriptor needs a name and a constructor", d.Name)
		}
		for _, name := range append([]string{d.Name}, d.Aliases...) {
			if owner, taken := owners[name]; taken {
				return nil, fmt.Errorf("controller %q: controller %q has the name %q already", d.Name, owner, name)
			}
			owners[name] = d.Name
		}
		r.options.Names = append(r.options.Names, d.Name)
		for _, alias := range d.Aliases {
			r.options.Aliases[alias] = d.Name
		}
		if d.DisabledByDefault {
			r.options.DisabledByDefault = append(r.options.DisabledByDefault, d.Name)
		}
		if d.Options != nil {
			r.options.Options[d.Name] = d.Options
		}
	}
	return r, nil
}
