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

package manager

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// TestOneServer tries what needs one server, which serves all that the project's controllers need at the end of the
// first part. The last part kills it.
func TestOneServer(t *testing.T) {
	t.Parallel()
	cp := startStorageVersionAPI(t, controlplane.Server{AllowAll: true})
	inTurn(t, cp,
		part{"Plugin", testPlugin}, part{"WrongFlags", testWrongFlags}, part{"Selection", testSelection},
		part{"Leadership", testLeadership}, part{"NoWriteAfterTheLease", testNoWriteAfterTheLease},
		part{"Outage", testOutage},
	)
}

// TestStart starts managers where others have installed the migration API, and the first part puts ours in its place.
// Then it starts managers whose API server says nothing, or is not there yet.
func TestStart(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{{AllowAll: true}}})
	inTurn(t, cp, part{"DefinitionsOfOthers", testDefinitionsOfOthers},
		part{"PausedAPIServer", testPausedAPIServer}, part{"BeforeTheAPIServer", testStartBeforeTheAPIServer})
}

// testStartBeforeTheAPIServer follows a control plane node that boots: the manager is up first, with nobody to talk to.
func testStartBeforeTheAPIServer(t *testing.T, cp *controlplane.ControlPlane) {
	server := cp.Servers()[0]
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	p := startManager(t, cp, framework.Manager, "early", onlyLead(nil)...)
	eventually(t, soon, "the port answers", func() bool { code, _ := p.get(t, nil, "/livez"); return code == 200 })
	eventually(
		t,
		soon,
		"the manager looked for the API server",
		func() bool { return strings.Contains(p.Log(), "Waiting for the API server") },
	)
	code, body := p.get(t, nil, "/readyz")
	if code == 200 || !strings.Contains(body, "[-]kube-apiserver failed") {
		t.Errorf("/readyz answers %d and does not say that the API server is missing:\n%s", code, body)
	}
	if code, _ := p.get(t, nil, "/healthz"); code != 200 {
		t.Errorf("/healthz answers %d: a restart would not bring the API server up", code)
	}
	stranger := startWithWrongCredentials(t, cp)

	if err := server.Restart(nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the stranger says that the server refuses its credentials", func() bool {
		return strings.Contains(stranger.Log(), "the API server refuses the credentials; check those of --kubeconfig")
	})
	framework.StopManager(t, stranger.Process)
	eventually(t, soon, "the manager leads", func() bool { return p.leads(t, cp) })
	eventually(t, soon, "the manager is ready", func() bool { code, _ := p.get(t, nil, "/readyz"); return code == 200 })
	if n := strings.Count(p.Log(), "Waiting for the API server"); n != 1 {
		t.Errorf("the wait was told %d times, once is enough:\n%s", n, p.Log())
	}

	t.Run("the StorageVersion API appears later", func(t *testing.T) {
		eventually(t, soon, "the manager tells once that the API is not served", func() bool {
			return strings.Contains(p.Log(), "The resource is not served")
		})
		if p.runs(t, cp, gcController) {
			t.Fatal("the controller runs without its API")
		}
		if err := server.Restart(func(s *controlplane.Server) { *s = controlplane.StorageVersionAPI(*s) }); err != nil {
			t.Fatal(err)
		}
		eventually(t, soon, "the controller runs", func() bool { return p.runs(t, cp, gcController) })
		checkRepeats(t, p.Log(), "The resource is not served", 1, unanswered)
	})
	t.Run("the StorageVersion API goes again", func(t *testing.T) {
		if err := server.Restart(func(s *controlplane.Server) { s.FeatureGates, s.RuntimeConfig = nil, nil }); err != nil {
			t.Fatal(err)
		}
		eventually(t, soon, "the manager tells that the API is gone", func() bool {
			return strings.Contains(p.Log(), "has stopped serving a resource")
		})
		if log := p.Log(); strings.Contains(log, "the server could not find the requested resource") {
			t.Errorf("an API that was switched off is logged as an error:\n%s", log)
		}
	})
	framework.StopManager(t, p.Process)
}

// startWithWrongCredentials starts a manager while there is no server. So the credentials are not the first thing that
// is wrong. They must be told all the same when they matter.
func startWithWrongCredentials(t *testing.T, cp *controlplane.ControlPlane) *managerProcess {
	t.Helper()
	wrong := rest.AnonymousClientConfig(cp.AdminConfig())
	wrong.BearerToken = "made up"
	kubeconfig := filepath.Join(t.TempDir(), "wrong.kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, wrong); err != nil {
		t.Fatal(err)
	}
	p := startManager(t, cp, framework.Manager, "wrong-credentials", "--kubeconfig="+kubeconfig)
	eventually(t, soon, "it says that the server is not there", func() bool {
		return strings.Contains(p.Log(), "to become ready")
	})
	return p
}

// testOutage wants a standby to stay up and quiet, and a leader to give way, while nothing answers.
func testOutage(t *testing.T, cp *controlplane.ControlPlane) {
	server := cp.Servers()[0]
	leader := startManager(t, cp, framework.Manager, "leader", onlyLead(framework.QuickElection)...)
	eventually(t, soon, "the first leads", func() bool { return leader.runs(t, cp, gcController) })
	// It looks so often that a line for each look would be too many.
	standby := startManager(t, cp, framework.Manager, "standby",
		append(onlyLead(framework.QuickElection), "--leader-elect-retry-period=500ms")...)
	eventually(t, soon, "the second is up", func() bool { code, _ := standby.get(t, nil, "/readyz"); return code == 200 })

	quiet, said := "", time.Now()
	eventually(t, soon, "the second has said all about its start", func() bool {
		if log := standby.Log(); log != quiet {
			quiet, said = log, time.Now()
		}
		return time.Since(said) > time.Second
	})
	killed := time.Now()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := waitEnd(t, leader); err == nil {
		t.Error("a leader that lost its lease must end with an error")
	}
	eventually(t, soon, "the standby notices", func() bool {
		return strings.Contains(standby.Log(), "Cannot read the leader lease because the API server does not answer")
	})
	if err := server.Restart(nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the standby leads", func() bool { return standby.runs(t, cp, gcController) })
	most := 40 + int(time.Since(killed).Seconds())
	// What it says as the leader is about its work.
	outage, _, _ := strings.Cut(strings.TrimPrefix(standby.Log(), quiet), "Successfully acquired lease")
	if lines := strings.Count(outage, "\n"); lines > most {
		t.Errorf("an outage of seconds made the standby log %d lines, want %d at most:\n%s", lines, most, standby.Log())
	}
	framework.StopManager(t, standby.Process)
}

// testPausedAPIServer wants a manager to start and stop cleanly while the API server takes connections and says
// nothing.
func testPausedAPIServer(t *testing.T, cp *controlplane.ControlPlane) {
	server := cp.Servers()[0]
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	p := startManager(t, cp, framework.Manager, "patient")
	eventually(t, soon, "the port answers", func() bool { code, _ := p.get(t, nil, "/livez"); return code == 200 })
	eventually(
		t,
		soon,
		"the manager says what it waits for",
		func() bool { return strings.Contains(p.Log(), "Waiting for the API server") },
	)
	began := time.Now()
	framework.StopManager(t, p.Process)
	// A request of it that nobody answers would go on for a minute.
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("a stop took %v", took)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

// TestHelp wants what a user asks for first.
func TestHelp(t *testing.T) {
	binary := framework.Binary(framework.Manager)
	for flag, wants := range map[string][]string{
		"--version": {"svm-controller-manager version v"},
		"--help": {
			"Generic flags:", "Secure serving flags:", "Feature gates flags:", "Logs flags:",
			"All controllers: " + triggerController + ", " + migratorController + ", " + gcController,
			"StorageVersionGarbageCollector=true|false", "StorageVersionMigrationTrigger=true|false",
			"StorageVersionMigrator=true|false", "StatusSubresourceFallback=true|false",
			"CRDStoredVersionsPruning=true|false", "CRDManagedFieldsCleaning=true|false",
			"Storage-version-migrator-controller flags:", "--max-concurrent-rewrites", "--finished-migration-ttl",
			"Observation flags:", "--settle-period", "Storage-version-migration-trigger-controller flags:", "--auto-migrate",
		},
	} {
		out, err := exec.CommandContext(t.Context(), binary, flag).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", flag, err)
		}
		for _, want := range wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s does not say %q:\n%s", flag, want, out)
			}
		}
	}
}

// testWrongFlags wants errors on the terminal, in words, and an exit code.
func testWrongFlags(t *testing.T, cp *controlplane.ControlPlane) {
	for name, tc := range map[string]struct {
		args  []string
		wants []string
	}{
		"all that is wrong with values at once": {
			args: []string{
				"--controllers=svmtriger", "--auto-migrate=-secrets", "--settle-period=-1s", "--poll-interval=1s",
				"--max-storage-growth=-1Gi", "--max-rewrites-per-second=-1", "--migration-chunk-size=0",
				"--max-concurrent-rewrites=100000",
			},
			wants: []string{
				`"svmtriger" is not in the list of known controllers, --controllers: the known controllers are ` +
					`["storage-version-migration-trigger-controller" "storage-version-migrator-controller" "storageversion-`,
				`--auto-migrate: "-secrets" only leaves something out, so that the list selects nothing: write "*,-secrets"`,
				"--settle-period must be from 0s to 24h0m0s, got -1s",
				"--poll-interval must be from 10s to 1h0m0s, got 1s",
				"--max-storage-growth must be zero, which is no bound, or between 1Mi and 1Pi, got -1Gi",
				"--max-rewrites-per-second must be zero, which is no bound, or between 0.01 and 1e+06, got -1",
				"--migration-chunk-size must be between 1 and 10000, got 0",
				"--max-concurrent-rewrites must be between 1 and 1000, got 100000",
			},
		},
		"too few looks": {
			args:  []string{"--poll-interval=24h"},
			wants: []string{"--poll-interval must be from 10s to 1h0m0s, got 24h0m0s"},
		},
		"nothing selected": {
			args:  []string{"--controllers=-storageversiongc"},
			wants: []string{`"-storageversiongc" leaves no controller: write "*,-storageversiongc" to run all others`},
		},
		"gated off": {
			args: []string{"--feature-gates=StorageVersionGarbageCollector=false," +
				"StorageVersionMigrationTrigger=false,StorageVersionMigrator=false"},
			wants: []string{"nothing to run"},
		},
		"unknown gate": {
			args:  []string{"--feature-gates=NoSuchGate=true"},
			wants: []string{"unrecognized feature gate: NoSuchGate"},
		},
		"unknown flag": {
			args:  []string{"--no-such-flag"},
			wants: []string{"unknown flag: --no-such-flag"},
		},
		"an argument": {
			args:  []string{"run"},
			wants: []string{`got the argument "run", but there are only flags`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startManager(t, cp, framework.Manager, "wrong-"+strings.ReplaceAll(name, " ", "-"), tc.args...)
			if err := waitEnd(t, p); err == nil {
				t.Error("the exit code says that all went well")
			}
			for _, want := range tc.wants {
				if !strings.Contains(strings.ReplaceAll(p.Log(), `\"`, `"`), want) {
					t.Errorf("the output does not say %q:\n%s", want, p.Log())
				}
			}
		})
	}
}

// testPlugin runs a manager with somebody else's controllers compiled in. The migration API is installed meanwhile.
func testPlugin(t *testing.T, cp *controlplane.ControlPlane) {
	p := startManager(t, cp, pluginBinary, "plugin")
	eventually(t, soon, "the project's controller runs beside", func() bool { return p.runs(t, cp, gcController) })
	if p.runs(t, cp, "waiter-controller") || p.runs(t, cp, "writer-controller") {
		t.Error("a controller runs without its resource, or though it is off by default")
	}
	const check = "waiter-controller-needs-storageversionmigrations.v1alpha1.migration.k8s.io"
	code, body := p.get(t, nil, "/readyz")
	if code == 200 || !strings.Contains(body, "[-]"+check+" failed") {
		t.Errorf("/readyz answers %d and does not say which controller waits for what:\n%s", code, body)
	}

	const standbyCheck = migratorController + "-needs-storageversionmigrations.v1alpha1.migration.k8s.io"
	standby := startManager(t, cp, framework.Manager, "standby")
	eventually(t, soon, "the standby waits for the lease", func() bool {
		return strings.Contains(standby.Log(), "Attempting to acquire leader lease")
	})
	if _, body := standby.get(t, nil, "/readyz"); !strings.Contains(body, "[-]"+standbyCheck+" failed") {
		t.Errorf("/readyz of a standby does not say that it could not work:\n%s", body)
	}

	installMigrationAPI(t, cp)
	eventually(t, soon, "the standby is ready", func() bool {
		code, _ := standby.get(t, nil, "/readyz")
		return code == 200
	})
	framework.StopManager(t, standby.Process)
	eventually(t, soon, "the controllers that waited run", func() bool {
		return p.runs(t, cp, "waiter-controller") && p.runs(t, cp, triggerController) && p.runs(t, cp, migratorController)
	})
	eventually(t, soon, "the manager is ready", func() bool {
		code, body := p.get(t, nil, "/readyz?verbose")
		return code == 200 && strings.Contains(body, "[+]"+check+" ok")
	})
	framework.StopManager(t, p.Process)

	writer := startManager(t, cp, pluginBinary, "plugin-writer", "--controllers=writer", "--write-interval=0s")
	if err := waitEnd(t, writer); err == nil || !strings.Contains(writer.Log(), "--write-interval must be positive") {
		t.Errorf("a plugin's flags are not validated: %v\n%s", err, writer.Log())
	}
}

// testSelection selects by default, by alias and by gate, and reads from the metrics what runs. Unit tests have all
// other selections. There is no leader election, hence no lease.
func testSelection(t *testing.T, cp *controlplane.ControlPlane) {
	c := client(t, cp.AdminConfig())
	leases := c.CoordinationV1().Leases(metav1.NamespaceSystem)
	// The managers of other parts leave it.
	if err := leases.Delete(t.Context(), managerLease, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		runs []string
	}{
		"everything that is on by default": {
			args: nil,
			runs: []string{gcController, triggerController},
		},
		"a gate": {
			args: []string{"--controllers=*,writer,-waiter", "--feature-gates=StorageVersionGarbageCollector=false"},
			runs: []string{"writer-controller", triggerController},
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--leader-elect=false", "--write-interval=10s"}, tc.args...)
			p := startManager(t, cp, pluginBinary, "selection-"+tc.runs[0], args...)
			eventually(t, soon, "it is ready and runs what was selected", func() bool {
				if code, _ := p.get(t, nil, "/readyz"); code != 200 {
					return false
				}
				for _, controller := range []string{gcController, triggerController, "writer-controller"} {
					if p.runs(t, cp, controller) != slices.Contains(tc.runs, controller) {
						return false
					}
				}
				return true
			})
			framework.StopManager(t, p.Process)
		})
	}
	if lease(t.Context(), c, managerLease) != nil {
		t.Error("there is a lease without leader election")
	}
}
