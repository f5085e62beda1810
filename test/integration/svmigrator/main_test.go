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

package svmigrator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/semaphore"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	managerBinary = "svm-controller-manager"
	// binariesEnv hands the folder of the built program to the run of this test inside its namespaces.
	binariesEnv = "SVM_TEST_MIGRATOR_BINARIES"
	// room is how many API servers run at once. The tests wait most of the time, but a machine that is too busy would make
	// judges of time unjust.
	room = 4
)

func TestMain(m *testing.M) {
	if os.Getenv(binariesEnv) == "" {
		if err := build(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	controlplane.Main(m, "sample-apiserver")
}

// TestMigrator runs every test on a control plane of its own, as many at once as there is room for, those that take longest
// first.
func TestMigrator(t *testing.T) {
	free := semaphore.NewWeighted(room)
	var running sync.WaitGroup
	for _, test := range []struct {
		name    string
		servers int64
		run     func(t *testing.T)
	}{
		{"ServerPushesBack", 1, testServerPushesBack},
		{"ServersKilled", 1, testServersKilled},
		{"TurnsOfEvents", 1, testTurnsOfEvents},
		{"ManagerKilled", 1, testManagerKilled},
		{"NetworkCut", 1, testNetworkCut},
		{"ExpiredToken", 1, testExpiredToken},
		{"CustomResources", 1, testCustomResources},
		{"BuiltIn", 1, testBuiltIn},
		{"ConversionWebhook", 1, testConversionWebhook},
		{"Aggregated", 1, testAggregated},
		{"Denied", 1, testDenied},
		{"Tidy", 1, testTidy},
		{"OthersWrite", 1, testOthersWrite},
		{"MadeByHand", 1, testMadeByHand},
		{"WithTrigger", 1, testWithTrigger},
	} {
		if err := free.Acquire(t.Context(), test.servers); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			defer free.Release(test.servers)
			t.Run(test.name, test.run)
		})
	}
	running.Wait()
}

// build builds the manager, with the race detector where it is to be had (it needs a C compiler).
func build() error {
	cgo, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil {
		return fmt.Errorf("asking for CGO_ENABLED: %w", err)
	}
	dir, err := filepath.Abs("../../../_output/test")
	if err != nil {
		return fmt.Errorf("locating the folder of test binaries: %w", err)
	}
	race := fmt.Sprintf("-race=%t", strings.TrimSpace(string(cgo)) == "1")
	out, err := exec.Command("go", "build", race, "-o", filepath.Join(dir, managerBinary), "../../../cmd/"+managerBinary).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", managerBinary, err, out)
	}
	return os.Setenv(binariesEnv, dir)
}
