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

package migrate

import (
	"strings"
	"testing"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

func TestValidateNames(t *testing.T) {
	const neither = "name the resources to migrate, or use --all"
	const both = neither + ", not both"
	env := &cli.Env{Connect: func() (*cli.Clients, error) { return nil, nil }}
	for _, test := range []struct {
		names string
		all   bool
		want  string
	}{
		{"", false, neither}, {"secrets", true, both}, {"secrets", false, ""}, {"", true, ""}, {"All", false, ""},
		{"all secrets", false, both},
	} {
		o := &Options{NamedOptions: cli.NamedOptions{Env: env}, Everything: test.all}
		err := o.Complete(strings.Fields(test.names))
		if err == nil {
			err = o.Validate()
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s, --all=%t: got %q, want %q", test.names, test.all, got, test.want)
		}
	}
}
