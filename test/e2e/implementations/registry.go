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
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

// Names of implementations, as they are given on command lines.
const (
	NameSVM    = "svm"
	NameInTree = "in-tree"
	NameKSVM   = "kube-storage-version-migrator"
)

// Names are all of them.
var Names = []string{NameSVM, NameInTree, NameKSVM}

// New makes the adapter of that name.
func New(name string, config *rest.Config) (suite.Implementation, error) {
	if !slices.Contains(Names, name) {
		return nil, fmt.Errorf("there is no implementation %q, only %s", name, strings.Join(Names, ", "))
	}
	switch name {
	case NameInTree:
		return NewInTree(config)
	case NameKSVM:
		return NewKSVM(config)
	default:
		return NewSVM(config)
	}
}
