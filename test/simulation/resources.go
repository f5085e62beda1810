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

package simulation

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	jobs        = schema.GroupResource{Group: "batch", Resource: "jobs"}
	budgets     = schema.GroupResource{Group: "policy", Resource: "budgets"}
	// Two names of the same objects, whose group moved. Where no server serves both names nobody can know that they are
	// the same.
	oldIngresses = schema.GroupResource{Group: "extensions", Resource: "ingresses"}
	newIngresses = schema.GroupResource{Group: "networking", Resource: "ingresses"}
	crontabs     = schema.GroupResource{Group: "example.com", Resource: "crontabs"}
	flunders     = schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}

	// everything is all resources that there are, in the order in which they are looked at.
	everything = [resources]schema.GroupResource{deployments, jobs, budgets, crontabs, flunders, oldIngresses,
		newIngresses}
)

// resources is how many there are.
const resources = 7

// position is that in everything.
func position(resource schema.GroupResource) int { return slices.Index(everything[:], resource) }

// stateNames are those of the states, by position.
var stateNames = func() [resources]string {
	var all [resources]string
	for i, resource := range everything {
		all[i] = resource.String()
	}
	return all
}()

// nameOf is the name of the state of a resource.
func nameOf(resource schema.GroupResource) string {
	if i := position(resource); i >= 0 {
		return stateNames[i]
	}
	return resource.String()
}

// storageOf is the resource under which the objects of a resource are kept.
func storageOf(resource schema.GroupResource) schema.GroupResource {
	if resource == oldIngresses {
		return newIngresses
	}
	return resource
}

// releases is how many releases of kube-apiserver there are.
const releases = 4

// builtIn is a resource of kube-apiserver.
type builtIn struct {
	resource schema.GroupResource
	kind     string
	// served are the versions by release, the preferred first. None: the release does not know the resource.
	served [releases][]string
	// stored is the version that a release stores, of the group if that is not the resource's own.
	stored [releases]string
	group  [releases]string
	// encodings are the hashes of that, empty where a release does not know the resource.
	encodings [releases]string
}

var builtIns = []*builtIn{
	{
		resource: deployments, kind: "Deployment",
		served: [releases][]string{{"v1beta1"}, {"v1", "v1beta1"}, {"v1", "v1beta1"}, {"v1"}},
		stored: [releases]string{"v1beta1", "v1beta1", "v1", "v1"},
	},
	{
		resource: jobs, kind: "Job",
		served: [releases][]string{{"v1alpha1"}, {"v1beta1", "v1alpha1"}, {"v1", "v1beta1"}, {"v1", "v1beta1"}},
		stored: [releases]string{"v1alpha1", "v1beta1", "v1beta1", "v1"},
	},
	{
		resource: budgets, kind: "Budget",
		served: [releases][]string{nil, {"v1"}, {"v1"}, {"v1"}},
		stored: [releases]string{"", "v1", "v1", "v1"},
	},
	{
		resource: oldIngresses, kind: "Ingress",
		served: [releases][]string{{"v1beta1"}, {"v1beta1"}, {"v1beta1"}, {"v1beta1"}},
		stored: [releases]string{"v1beta1", "v1beta1", "v1beta1", "v1"},
		group:  [releases]string{"", "", "networking", "networking"},
	},
	{
		resource: newIngresses, kind: "Ingress",
		served: [releases][]string{{"v1beta1"}, {"v1beta1"}, {"v1", "v1beta1"}, {"v1"}},
		stored: [releases]string{"v1beta1", "v1beta1", "v1beta1", "v1"},
		group:  [releases]string{"extensions", "extensions", "", ""},
	},
}

// builtInAt are the built-in resources by position.
var builtInAt [resources]*builtIn

// hashes are computed once.
var hashes = map[schema.GroupVersionKind]string{}

func init() {
	for _, b := range builtIns {
		builtInAt[position(b.resource)] = b
		for release := range releases {
			if b.stored[release] != "" {
				gv := b.groupVersion(release)
				b.encodings[release] = remember(gv.Group, gv.Version, b.kind)
			}
		}
	}
	for i, version := range customVersions {
		customEncodings[i] = remember(crontabs.Group, version, customKind)
	}
	for i, version := range aggregatedVersions {
		aggregatedEncodings[i] = remember(flunders.Group, version, aggregatedKind)
	}
}

func remember(group, version, kind string) string {
	gvk := schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
	hashes[gvk] = storageversion.Hash(gvk.GroupVersion(), kind)
	return hashes[gvk]
}

// words is a hash for people.
func words(hash string) string {
	for gvk, h := range hashes {
		if h == hash {
			return gvk.Version
		}
	}
	return hash
}

// encoding is the hash of what a release stores, empty if it does not know the resource.
func (b *builtIn) encoding(release int) string { return b.encodings[release] }

// groupVersion is what a release stores.
func (b *builtIn) groupVersion(release int) schema.GroupVersion {
	return schema.GroupVersion{Group: cmp.Or(b.group[release], b.resource.Group), Version: b.stored[release]}
}
