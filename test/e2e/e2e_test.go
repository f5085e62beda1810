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

package e2e

import (
	"flag"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/e2e/implementations"
	"sigs.k8s.io/svm-controller-manager/test/e2e/specs"
	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

var (
	options suite.Options
	chosen  = flag.String("implementation", implementations.NameSVM,
		"the implementation in the cluster: "+strings.Join(implementations.Names, ", "))
)

func init() { options.AddFlags(flag.CommandLine) }

// TestConformance runs the specs against the cluster of --kubeconfig, and none without it.
func TestConformance(t *testing.T) {
	suite.Run(t, options, func(config *rest.Config) (suite.Implementation, error) {
		return implementations.New(*chosen, config)
	}, specs.All())
}
