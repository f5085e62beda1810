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
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

const everyResource = "*"

// Selection says of which resources the trigger may start migrations. The zero value selects none.
type Selection struct {
	byName  map[schema.GroupResource]bool
	byGroup map[string]bool
	rest    bool
}

// ParseSelection reads a list of the kind that --controllers takes. Its elements are names of StorageStates ("secrets",
// "deployments.apps"), all resources of a group ("*.example.com") or all resources ("*"), each with a minus in front to
// leave them out. The most specific element decides, in whatever order they are; what no element is about is left out.
// Each error names one element and says what to write instead.
func ParseSelection(elements []string) (Selection, []error) {
	s := Selection{byName: map[schema.GroupResource]bool{}, byGroup: map[string]bool{}}
	var errs []error
	said := map[string]bool{}
	selects, excludesSome := false, ""
	for _, element := range elements {
		element = strings.TrimSpace(element)
		name := strings.TrimPrefix(element, "-")
		selected := name == element
		if before, twice := said[name]; twice && before != selected {
			errs = append(errs, fmt.Errorf("%q and %q contradict each other: keep one of the two", name, "-"+name))
			continue
		}
		said[name] = selected
		if err := s.add(name, selected); err != nil {
			errs = append(errs, err)
			continue
		}
		selects = selects || selected
		if !selected && name != everyResource {
			excludesSome = element
		}
	}
	// Like --controllers, this list selects nothing that it does not mention. Somebody who only names what to leave out
	// expects the rest to be migrated, and would wait in vain.
	if !selects && excludesSome != "" && !mentions(said, everyResource) && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%q leaves something out of nothing: write %q to leave it out of everything, "+
			"or %q to migrate nothing", excludesSome, everyResource+","+excludesSome, "-"+everyResource))
	}
	return s, errs
}

func mentions(said map[string]bool, name string) bool {
	_, mentioned := said[name]
	return mentioned
}

func (s *Selection) add(name string, selected bool) error {
	if name == everyResource {
		s.rest = selected
		return nil
	}
	if group, all := strings.CutPrefix(name, everyResource+"."); all {
		if problems := validation.IsDNS1123Subdomain(group); len(problems) > 0 {
			return fmt.Errorf("%q does not name a group: write it as in \"*.example.com\"; "+
				"resources of the core group are named one by one", name)
		}
		s.byGroup[group] = selected
		return nil
	}
	resource := schema.ParseGroupResource(name)
	if len(validation.IsDNS1123Label(resource.Resource)) > 0 ||
		(strings.Contains(name, ".") && len(validation.IsDNS1123Subdomain(resource.Group)) > 0) {
		return fmt.Errorf("%q does not name a resource: write its plural in lower case with its group, "+
			"as in \"deployments.apps\", or \"secrets\" in the core group; "+
			"\"*.example.com\" is all resources of a group, \"*\" is all", name)
	}
	s.byName[resource] = selected
	return nil
}

// Selects tells whether migrations of the resource may be started.
func (s Selection) Selects(resource schema.GroupResource) bool {
	if selected, named := s.byName[resource]; named {
		return selected
	}
	if selected, named := s.byGroup[resource.Group]; named {
		return selected
	}
	return s.rest
}
