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

package svmtrigger

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
)

const everyResource = "*"

// Selection says of which resources the trigger may create migrations, by the names that ParseSelection reads. The zero
// value selects none.
type Selection map[string]bool

// ParseSelection reads a list of the kind that --controllers takes. Its elements are names of StorageStates
// ("secrets", "deployments.apps"), all resources of a group ("*.example.com") or all resources ("*"), each with a
// minus in front to leave them out. The most specific element decides, whatever the order. What no element is about
// is left out. An empty list is an error. Each error says what to write instead.
func ParseSelection(elements []string) (Selection, []error) {
	s := Selection{}
	var errs []error
	if len(elements) == 0 { // As from a variable that is not set. It may be meant as all, or as nothing.
		errs = append(errs, fmt.Errorf("the list is empty: write %q to migrate all resources, or %q to migrate nothing",
			everyResource, "-"+everyResource))
	}
	selectsSome, excluded := false, ""
	for _, element := range elements {
		element = strings.TrimSpace(element)
		name := strings.TrimPrefix(element, "-")
		selected := name == element
		if before, twice := s[name]; twice && before != selected {
			errs = append(errs, fmt.Errorf("%q and %q contradict each other: keep one of the two", name, "-"+name))
			continue
		}
		s[name] = selected
		if err := validateSelected(name); err != nil {
			errs = append(errs, err)
			continue
		}
		selectsSome = selectsSome || selected
		if !selected && name != everyResource {
			excluded = element
		}
	}
	// Like --controllers, this list selects nothing that it does not mention. Somebody who only names what to leave out
	// expects the rest to be migrated, and would wait in vain.
	if _, mentioned := s[everyResource]; !mentioned && !selectsSome && excluded != "" && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%q only leaves something out, so that the list selects nothing: write %q to migrate "+
			"all other resources, or %q to migrate nothing", excluded, everyResource+","+excluded, "-"+everyResource))
	}
	return s, errs
}

func validateSelected(name string) error {
	if name == everyResource {
		return nil
	}
	if group, all := strings.CutPrefix(name, everyResource+"."); all {
		if len(validation.IsDNS1123Subdomain(group)) > 0 {
			return fmt.Errorf("%q does not name a group: write it as in \"*.example.com\"; "+
				"resources of the core group are named one by one", name)
		}
		return nil
	}
	if meant := meantResource(name); meant != "" {
		return fmt.Errorf("%q does not name a resource: write %q", name, meant)
	}
	resource := schema.ParseGroupResource(name)
	if len(validation.IsDNS1123Label(resource.Resource)) > 0 ||
		(strings.Contains(name, ".") && len(validation.IsDNS1123Subdomain(resource.Group)) > 0) {
		return fmt.Errorf("%q does not name a resource: write its plural in lower case with its group, "+
			"as in \"deployments.apps\", or \"secrets\" in the core group; "+
			"\"*.example.com\" is all resources of a group, \"*\" is all", name)
	}
	return nil
}

// meantResource returns the resource that a name without a group means if no resource of the core group has that name:
// secrets if it is secret, and deployments.apps if it is deployments. It is empty if the name means no other resource.
func meantResource(name string) string {
	meant := sets.Set[string]{}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		plural, singular := meta.UnsafeGuessKindToResource(gvk)
		if name == plural.Resource && gvk.Group == "" {
			return ""
		}
		if gvk.Group != "extensions" && (name == plural.Resource || name == singular.Resource) { // No server has that group.
			meant.Insert(plural.GroupResource().String())
		}
	}
	if meant.Len() == 0 {
		return ""
	}
	return sets.List(meant)[0]
}

// Unmatched returns the names of the selection that are about none of the resources, in order.
func (s Selection) Unmatched(resources []schema.GroupResource) []string {
	unmatched := maps.Clone(s)
	delete(unmatched, everyResource)
	for _, resource := range resources {
		delete(unmatched, resource.String())
		delete(unmatched, everyResource+"."+resource.Group)
	}
	return slices.Sorted(maps.Keys(unmatched))
}

// Selects reports whether the trigger may create migrations of the resource.
func (s Selection) Selects(resource schema.GroupResource) bool {
	for _, name := range []string{resource.String(), everyResource + "." + resource.Group, everyResource} {
		if selected, named := s[name]; named {
			return selected
		}
	}
	return false
}
