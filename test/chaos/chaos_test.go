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

package chaos

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

var (
	// With the default the servers are upgraded, and etcd is restored, early enough on a busy machine.
	seed     = flag.Uint64("seed", 122, "what the faults, the changes and the writes depend on")
	duration = flag.Duration("duration", 90*time.Second, "how long to go on. Rounds of faults end when everything is "+
		"migrated again, and no round begins after this time")
	roundLength = flag.Duration("round", 90*time.Second, "how long there are faults in a round, or the duration if that "+
		"is shorter")
	faults  = flag.String("faults", "", "the kinds of faults, separated by commas. Empty stands for all")
	folder  = flag.String("report", "", "the folder for reports and logs. Empty stands for a temporary one")
	mutants = flag.Bool("mutants", false, "try the validators with managers that have mistakes, instead of the right one")
	manager = flag.String("manager", "", "the program of the manager. Empty stands for the one that "+
		"hack/build-managers.sh builds")
)

func TestMain(m *testing.M) { controlplane.Main(m) }

func TestChaos(t *testing.T) {
	if *mutants {
		tryMutants(t)
		return
	}
	config := Config{
		Seed: *seed, Duration: *duration, Round: min(*roundLength, *duration), Manager: *manager,
		Dir: filepath.Join(os.TempDir(), fmt.Sprintf("chaos-%d-%d", *seed, os.Getpid())), Logf: t.Logf,
	}
	if config.Manager == "" {
		config.Manager = filepath.Join(cmp.Or(os.Getenv("SVM_TEST_BINARIES"), "../../_output/test"), "svm-controller-manager")
	}
	if *folder != "" {
		config.Dir = filepath.Join(*folder, fmt.Sprintf("chaos-%d-%s", *seed, time.Now().Format("20060102-150405")))
	}
	if *faults != "" {
		config.Faults = strings.Split(*faults, ",")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	report, err := Run(ctx, config)
	if report != nil {
		var text strings.Builder
		report.Text(&text)
		t.Log("\n" + text.String())
	}
	if err != nil {
		t.Errorf("%v\nthe logs are in %s; run it again with -seed=%d", err, config.Dir, *seed)
		return
	}
	done := config.Dir
	if *folder != "" {
		done = filepath.Join(config.Dir, "controlplane") // The reports stay.
	}
	if err := os.RemoveAll(done); err != nil {
		t.Error(err)
	}
}
