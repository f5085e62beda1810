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

package controlplane

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// Main is for the TestMain of packages whose control planes have hosts. It runs the tests in a second run of the test
// binary, inside network and host name namespaces of its own (and a user namespace, where not root), and exits with
// their code.
//
// There is no way out of these namespaces: what needs the Internet must happen before. Main itself builds what is
// missing of etcd, kube-apiserver, and the binaries named.
//
// Where namespaces cannot be had, the tests run without, and those that start a control plane with hosts fail and say
// why.
func Main(m *testing.M, binaries ...string) {
	if err := buildMissing("", append([]string{etcdBinary, serverBinary}, binaries...)...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// The error is kept, and given to those who ask for hosts.
	if err := EnterNamespaces(); err != nil && !errors.Is(err, ErrNoHosts) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// EnterNamespaces is Main for commands, to be called before anything that a second run of the program should not do
// again. It returns nil in the second run, which is inside the namespaces; the first one passes on signals, waits, and
// exits with the code of the second. An error wraps ErrNoHosts: the program may go on with a control plane without
// hosts.
func EnterNamespaces() error { return enterNamespaces() }
