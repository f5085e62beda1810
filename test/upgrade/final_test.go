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

package upgrade

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// ending is what a test finds at its end.
type ending struct {
	objects int
	// versions counts what was listed: a resource in one version, from one server.
	versions int
	// empty are resources without an object, unserved those whose objects no server shows any more.
	empty, unserved sets.Set[string]
}

// everythingCurrent complains unless every server lists every object that etcd has, in every version that it serves,
// and etcd has each in the encoding that the server says it writes.
func (j *judge) everythingCurrent(ctx context.Context, t *testing.T) (*ending, error) {
	t.Helper()
	end := &ending{empty: sets.New[string](), unserved: sets.New[string]()}
	for _, server := range j.Servers() {
		s, err := j.see(ctx)
		if err != nil {
			return nil, err
		}
		served, err := listed(ctx, server)
		if err != nil {
			return nil, err
		}
		end.objects = 0
		for resource, objects := range s.objects {
			end.objects += len(objects)
			if served[resource] == nil {
				end.unserved.Insert(resource.String())
				continue
			}
			for _, o := range objects {
				if hash := served[resource].hash; hashOf(o) != hash && !isEvents(resource) {
					return nil, fmt.Errorf("%s writes %s, and %s is stored as %s", server.Name(), hash, o.Key, o.Encoding)
				}
			}
		}
		for resource, list := range served {
			end.versions += len(list.names)
			if len(s.objects[resource]) == 0 && list.hash != "" && !isOurs(resource) {
				end.empty.Insert(resource.String())
			}
			for version, names := range list.names {
				if err := same(s.objects[resource], names); err != nil && !isOurs(resource) && !isEvents(resource) {
					return nil, fmt.Errorf("%s lists %s of %s: %w", server.Name(), version, resource, err)
				}
			}
		}
	}
	return end, nil
}

// isOurs tells the resources that managers write while the test looks at them.
func isOurs(r schema.GroupResource) bool { return r.Group == "migration.k8s.io" }

// list is what a server says of a resource.
type list struct {
	hash  string
	names map[string]sets.Set[string] // of the objects, by version
}

// listed reads every resource from a server in every version.
func listed(ctx context.Context, server *controlplane.APIServer) (map[schema.GroupResource]*list, error) {
	config := server.Config("reader", framework.Masters)
	documents, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	documents.UseLegacyDiscovery = true // Only these documents have the hashes.
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	_, all, err := documents.ServerGroupsAndResources()
	if err != nil {
		return nil, err
	}
	served := map[schema.GroupResource]*list{}
	for _, document := range all {
		version, err := schema.ParseGroupVersion(document.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range document.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") {
				continue
			}
			resource := schema.GroupResource{Group: version.Group, Resource: r.Name}
			if served[resource] == nil {
				served[resource] = &list{names: map[string]sets.Set[string]{}}
			}
			objects, err := client.Resource(version.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("%s does not list %s of %s: %w", server.Name(), version, resource, err)
			}
			names := sets.New[string]()
			for _, o := range objects.Items {
				names.Insert(o.GetNamespace() + "/" + o.GetName())
			}
			served[resource].hash, served[resource].names[version.Version] = r.StorageVersionHash, names
		}
	}
	return served, nil
}

// same complains unless a server lists the objects that etcd has.
func same(stored []controlplane.StoredObject, names sets.Set[string]) error {
	for _, o := range stored {
		if !names.Has(o.Namespace + "/" + o.Name) {
			return fmt.Errorf("%s is not there", o.Key)
		}
	}
	if len(stored) != names.Len() {
		return fmt.Errorf("there are %d objects, and etcd has %d", names.Len(), len(stored))
	}
	return nil
}
