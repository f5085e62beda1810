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
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
)

// Controller is what a constructor returns.
type Controller interface {
	// Run works until ctx ends and returns when all its goroutines have ended. It writes nothing after that.
	Run(ctx context.Context)
}

// ControllerConstructor makes a controller. It asks for the informers it needs and starts nothing: the manager starts the
// informers, then calls Run. A nil Controller means that there is nothing to run.
type ControllerConstructor func(ctx context.Context, controllerContext ControllerContext) (Controller, error)

// ControllerDescriptor is all that the manager knows of a controller before it runs. Another program hands descriptors of
// its own to NewControllerManagerCommand.
type ControllerDescriptor struct {
	// Name is the canonical name. It must be unique and never change.
	Name string
	// Aliases are further names that --controllers takes.
	Aliases []string
	// FeatureGates must all be on for the controller to run.
	FeatureGates []featuregate.Feature
	// DisabledByDefault says that `*` in --controllers does not select it.
	DisabledByDefault bool
	// Needs are the resources that the API server must serve before the controller is made.
	Needs []Need
	// Observes says that the controller goes by what the API servers write. They are then observed from the start of the
	// process, also while it waits for its turn to lead.
	Observes bool
	// Options are its flags; nil if it has none.
	Options options.ControllerOptions
	// New makes the controller.
	New ControllerConstructor
}

// Need is a resource without which a controller cannot run.
type Need struct {
	Resource schema.GroupVersionResource
	// Optional says that a cluster without the resource is a normal one, so that readiness does not wait for it.
	Optional bool
}

// String returns the resource as an administrator writes it: "<resource>.<version>.<group>".
func (n Need) String() string {
	return n.Resource.Resource + "." + n.Resource.Version + "." + n.Resource.Group
}

// Registry holds controllers by name.
type Registry struct {
	descriptors map[string]ControllerDescriptor
	aliases     map[string]string
}

// NewControllerDescriptors returns the controllers of this project, each registered by one line.
func NewControllerDescriptors() []ControllerDescriptor {
	return []ControllerDescriptor{
		newStorageVersionGCDescriptor(),
		newStorageVersionMigrationTriggerDescriptor(),
		newStorageVersionMigratorDescriptor(),
	}
}

// NewRegistry returns a registry of the descriptors, or an error where one is incomplete or two claim the same name.
func NewRegistry(descriptors ...ControllerDescriptor) (*Registry, error) {
	r := &Registry{descriptors: map[string]ControllerDescriptor{}, aliases: map[string]string{}}
	for _, d := range descriptors {
		if d.Name == "" || d.New == nil {
			return nil, fmt.Errorf("controller %q: a descriptor needs a name and a constructor", d.Name)
		}
		if _, taken := r.descriptors[d.Name]; taken {
			return nil, fmt.Errorf("controller %q is registered twice", d.Name)
		}
		r.descriptors[d.Name] = d
		for _, alias := range d.Aliases {
			if other, taken := r.aliases[alias]; taken {
				return nil, fmt.Errorf("alias %q of controller %q belongs to controller %q already", alias, d.Name, other)
			}
			r.aliases[alias] = d.Name
		}
	}
	for alias, name := range r.aliases {
		if _, taken := r.descriptors[alias]; taken {
			return nil, fmt.Errorf("alias %q of controller %q is the name of another controller", alias, name)
		}
	}
	return r, nil
}

// Names returns the canonical names in order.
func (r *Registry) Names() []string {
	return slices.Sorted(maps.Keys(r.descriptors))
}

// Descriptors returns the descriptors ordered by name.
func (r *Registry) Descriptors() []ControllerDescriptor {
	var all []ControllerDescriptor
	for _, name := range r.Names() {
		all = append(all, r.descriptors[name])
	}
	return all
}

// controllers returns what the options need to know.
func (r *Registry) controllers() options.Controllers {
	c := options.Controllers{Names: r.Names(), Aliases: maps.Clone(r.aliases), Options: map[string]options.ControllerOptions{}}
	for _, d := range r.Descriptors() {
		if d.DisabledByDefault {
			c.DisabledByDefault = append(c.DisabledByDefault, d.Name)
		}
		if d.Options != nil {
			c.Options[d.Name] = d.Options
		}
	}
	return c
}
