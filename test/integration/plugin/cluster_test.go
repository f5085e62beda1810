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

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	root = "../../.."
	// soon is how long what takes several steps may take on a busy machine.
	soon = 10 * time.Minute
	// settle is the settle period of the manager.
	settle = 3 * time.Second
	// administrator and stranger are people who may do everything, and nothing. viewer and operator get the roles of the
	// manifests.
	administrator, stranger, viewer, operator = "administrator", "stranger", "viewer", "operator"
)

// patiently is the flag of a command that waits for what takes several steps.
var patiently = "--timeout=" + soon.String()

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// cluster is a control plane with kubeconfigs for people.
type cluster struct {
	*framework.Cluster
	kubeconfigs map[string]string
	path        string
	manager     *controlplane.Process
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	cp := controlplane.Start(t, controlplane.Config{})
	c := &cluster{Cluster: framework.Use(t, cp, cp.AdminConfig()), kubeconfigs: map[string]string{}}
	for person, groups := range map[string][]string{
		administrator: {framework.Masters}, stranger: nil, viewer: nil, operator: nil,
	} {
		path := filepath.Join(t.TempDir(), person)
		if err := cp.WriteKubeconfig(path, cp.Config(person, groups...)); err != nil {
			t.Fatal(err)
		}
		c.kubeconfigs[person] = path
	}
	kubectl, err := controlplane.Binary("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	completion, err := filepath.Abs(root + "/cmd/kubectl-svm")
	if err != nil {
		t.Fatal(err)
	}
	folders := []string{filepath.Dir(kubectl), completion, os.Getenv("PATH")}
	// An older program of the same name may be beside kubectl.
	folders = slices.Insert(folders, 0, filepath.Dir(framework.Binary("kubectl-svm")))
	c.path = strings.Join(folders, string(filepath.ListSeparator))
	return c
}

const (
	// barely gives a person time to do something about a migration while it runs, and slowly to look at it.
	barely  = "--max-rewrites-per-second=0.5"
	slowly  = "--max-rewrites-per-second=3"
	quickly = "--max-rewrites-per-second=0"
)

// startManager runs a manager, in place of the one that runs, that migrates the widgets and nothing else.
func (c *cluster) startManager(t *testing.T, pace string) {
	t.Helper()
	if c.manager != nil {
		framework.StopManager(t, c.manager)
	}
	c.manager, _ = framework.StartManager(t, c.ControlPlane, framework.Process{
		Name: "manager", Config: c.Config(framework.ManagerUser, framework.Masters),
		Args: append([]string{"-v=2", "--secure-port=0", "--settle-period=" + settle.String(),
			"--auto-migrate=" + widgets.String(), pace}, framework.PatientElection...),
	})
}

// ran is what a command printed.
type ran struct {
	line, out, err string
	code           int
}

func (r ran) String() string {
	return fmt.Sprintf("%s\nexit code %d, stdout:\n%s\nstderr:\n%s", r.line, r.code, r.out, r.err)
}

// must complains unless the command ended with the code, and printed all of these on its standard output.
func (r ran) must(t *testing.T, code int, printed ...string) ran {
	t.Helper()
	if r.code != code {
		t.Fatalf("want exit code %d: %s", code, r)
	}
	for _, part := range printed {
		if !strings.Contains(r.out, part) {
			t.Fatalf("the output lacks %q: %s", part, r)
		}
	}
	return r
}

// tell complains unless the command printed all of these as progress or errors.
func (r ran) tell(t *testing.T, printed ...string) ran {
	t.Helper()
	for _, part := range printed {
		if !strings.Contains(r.err, part) {
			t.Fatalf("the errors lack %q: %s", part, r)
		}
	}
	return r
}

// svm runs what kubectl svm runs, as the administrator.
func (c *cluster) svm(t *testing.T, args ...string) ran {
	t.Helper()
	command := c.command(t, administrator, args...)
	command.Path = framework.Binary("kubectl-svm")
	return run(t, command, "")
}

// awaitSVM runs what svm runs until it ends with the code, and prints all of these.
func (c *cluster) awaitSVM(t *testing.T, args []string, code int, printed ...string) {
	t.Helper()
	framework.Eventually(t, soon, func(context.Context) error {
		answer := c.svm(t, args...)
		lacks := func(part string) bool { return !strings.Contains(answer.out, part) }
		if answer.code != code || slices.ContainsFunc(printed, lacks) {
			return fmt.Errorf("want exit code %d and %q: %s", code, printed, answer)
		}
		return nil
	})
}

// timesOut runs what svm runs, with a --timeout that is too short for what it waits for. On a busy machine the time may
// have passed before the wait began. Then it gets more time.
func (c *cluster) timesOut(t *testing.T, timeout time.Duration, args ...string) ran {
	t.Helper()
	for ; ; timeout *= 3 {
		answer := c.svm(t, append(args, "--timeout="+timeout.String())...)
		if timeout > soon || !strings.Contains(answer.err, "--timeout has passed") {
			return answer.must(t, 3).tell(t, "timed out after "+timeout.String())
		}
	}
}

// kubectl runs kubectl as a person, with an input.
func (c *cluster) kubectl(t *testing.T, person, input string, args ...string) ran {
	t.Helper()
	return run(t, c.command(t, person, args...), input)
}

func run(t *testing.T, command *exec.Cmd, input string) ran {
	t.Helper()
	var out, errOut bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &errOut
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{
		line: command.String(), out: out.String(), err: errOut.String(), code: command.ProcessState.ExitCode(),
	}
}

func (c *cluster) command(t *testing.T, person string, args ...string) *exec.Cmd {
	t.Helper()
	kubectl, err := controlplane.Binary("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), kubectl, args...)
	command.Env = []string{
		"KUBECONFIG=" + c.kubeconfigs[person], "HOME=" + t.TempDir(), "PATH=" + c.path, "TERM=xterm",
	}
	return command
}

// apply creates or changes objects.
func (c *cluster) apply(t *testing.T, manifests ...string) {
	t.Helper()
	c.kubectl(t, administrator, strings.Join(manifests, "\n---\n"),
		"apply", "--server-side", "--force-conflicts", "-f", "-").must(t, 0)
}

// report is what status prints for programs.
type report struct {
	Safe      bool
	Resources []struct {
		Name, Reason, Attention, Verb, Written string
		Stored                                 []string
		Migration                              *struct{ Name, State string }
	}
}

// awaitReason polls until the widgets have that reason.
func (c *cluster) awaitReason(t *testing.T, reason string) report {
	t.Helper()
	var last report
	framework.Eventually(t, soon, func(context.Context) error {
		last = report{}
		answer := c.svm(t, "status", "widgets", "-o", "json")
		if err := json.Unmarshal([]byte(answer.out), &last); err != nil {
			return fmt.Errorf("%w: %s", err, answer)
		}
		if len(last.Resources) != 1 || last.Resources[0].Reason != reason {
			return fmt.Errorf("want the reason %s: %s", reason, answer)
		}
		return nil
	})
	return last
}

// mustBeStored complains about widgets that are stored in another version.
func (c *cluster) mustBeStored(t *testing.T, version string) {
	t.Helper()
	stored, err := c.Stored(t.Context(), widgets)
	if err != nil {
		t.Fatal(err)
	}
	if len(stored) != widgetCount {
		t.Fatalf("%d widgets are stored, want %d", len(stored), widgetCount)
	}
	for _, object := range stored {
		if want := widgets.Group + "/" + version; object.Encoding != want {
			t.Errorf("%s is stored in %s, want %s", object.Key, object.Encoding, want)
		}
	}
}
