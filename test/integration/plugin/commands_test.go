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
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

func testMigrate(t *testing.T, c *cluster) {
	before, err := c.Migrations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.svm(t, "migrate", "secrets", "--dry-run=client", "-o", "yaml").must(t, 0, "generateName: secrets-")
	custom := c.svm(t, "migrate", "--all", "--custom", "--dry-run=server").must(t, 0,
		"widgets.example.com-", "storagestates.migration.k8s.io-", "created (server dry run)")
	if strings.Contains(custom.out, "secrets") || strings.Contains(custom.out, "apps") {
		t.Errorf("built-in resources are not custom: %s", custom)
	}
	builtIn := c.svm(t, "migrate", "--all", "--builtin", "--dry-run=client").must(t, 0, "/secrets-", "/deployments.apps-")
	if strings.Contains(builtIn.out, "widgets") || strings.Contains(builtIn.out, "/events") {
		t.Errorf("widgets are not built in, and events expire: %s", builtIn)
	}
	c.svm(t, "migrate", "--all", "--aggregated").must(t, 1).tell(t, "nothing was created")
	c.svm(t, "migrate").must(t, 1).tell(t, "name the resources to migrate, or use --all")
	c.svm(t, "migrate", "--builtin").must(t, 1).tell(t, "need --all")
	c.svm(t, "migrate", "widgets", "--timeout=1s").must(t, 1).tell(t, "--timeout needs --wait")
	after, err := c.Migrations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(after.Items) != len(before.Items) {
		t.Errorf("dry runs have created %d migrations", len(after.Items)-len(before.Items))
	}
	c.timesOut(t, 4*time.Second, "migrate", "events", "--wait").tell(t, "continue: events-")
}

// testMisspelt creates a migration that fails in a later step.
func testMisspelt(t *testing.T, c *cluster) {
	c.kubectl(t, administrator, `
apiVersion: migration.k8s.io/v1alpha1
kind: StorageVersionMigration
metadata: {name: misspelt}
spec: {resource: {group: example.com, resource: gadget}}`, "create", "-f", "-").must(t, 0)
}

// testDeleted deletes the definition of gadgets, of which a migration is left, and that of testMisspelt.
func testDeleted(t *testing.T, c *cluster) {
	c.apply(t, strings.NewReplacer("widget", "gadget", "Widget", "Gadget", "[wi]", "[ga]").Replace(definition("v1")))
	framework.Eventually(t, soon, func(context.Context) error {
		if answer := c.svm(t, "status", "gadgets"); answer.code != 2 || !strings.Contains(answer.out, "NotSelected") {
			return fmt.Errorf("gadgets are not observed: %s", answer)
		}
		return nil
	})
	c.svm(t, "migrate", "gadgets", "--wait", patiently).must(t, 0)
	c.kubectl(t, administrator, "", "delete", "customresourcedefinition", "gadgets.example.com").must(t, 0)
	framework.Eventually(t, soon, func(context.Context) error {
		if answer := c.svm(t, "status", "*.example.com"); answer.code != 0 {
			return fmt.Errorf("nothing of gadgets is left: %s", answer)
		}
		return nil
	})
	// The manager deletes the state when it has seen that the definition is gone.
	c.awaitSVM(t, []string{"status", "gadgets"}, 2, "NotServed", "The API server does not serve the resource")
	c.svm(t, "denied").must(t, 0, "No objects are denied.")
	for _, verb := range []string{"status", "plan"} {
		if answer := c.svm(t, verb); strings.Contains(answer.out, "gadget") {
			t.Errorf("it tells of resources that are gone: %s", answer)
		}
	}
	c.svm(t, "history").must(t, 0, "gadgets.example.com", "ResourceNotServed")
	c.svm(t, "pause", "gadgets").must(t, 1).tell(t, "gadgets.example.com has no StorageState: the API server does not")
}

func testStranger(t *testing.T, c *cluster) {
	for _, args := range [][]string{
		{"status"}, {"plan"}, {"history"}, {"denied"}, {"pause", "widgets"}, {"migrate", "widgets"},
	} {
		c.kubectl(t, stranger, "", append([]string{"svm"}, args...)...).must(t, 1).tell(t,
			`User "stranger" cannot list resource "storagestates"`, "Ask an administrator of the cluster")
	}
	// Whoever may not read the Lease does not know whether a manager still looks.
	c.allow(t, "clusterrole", "list", "storagestates.migration.k8s.io,storageversionmigrations.migration.k8s.io")
	c.awaitStranger(t, 2, "It is not known whether a manager runs: its lease could not be read (leases.coordination",
		"Not known to be safe", "ask an administrator of the cluster for this permission")
	c.allow(t, "role", "get", "leases.coordination.k8s.io", "-n=kube-system")
	c.awaitStranger(t, 0, " leads.", "Safe to remove old versions")
}

// testPeople gives two people the roles that the manifests have for them.
func testPeople(t *testing.T, c *cluster) {
	c.kubectl(t, administrator, "", "apply", "-f", root+"/build/manifests/rbac/people/roles.yaml").must(t, 0)
	for person, roles := range map[string][]string{viewer: {"view"}, operator: {"view", "operate"}} {
		for _, role := range roles {
			c.kubectl(t, administrator, "", "create", "clusterrolebinding", person+"-"+role,
				"--clusterrole=svm-controller-manager:"+role, "--user="+person).must(t, 0)
		}
	}
	as := func(person string, args ...string) ran {
		return c.kubectl(t, person, "", append([]string{"svm"}, args...)...)
	}
	framework.Eventually(t, soon, func(context.Context) error { // until the API server knows the bindings
		if answer := as(operator, "pause", "widgets"); answer.code != 0 {
			return fmt.Errorf("the operator may not pause: %s", answer)
		}
		return nil
	})
	as(operator, "resume", "widgets").must(t, 0)
	as(operator, "migrate", "widgets", "--wait", patiently).must(t, 0)
	as(viewer, "status", "widgets").must(t, 0, " leads.", "Safe to remove old versions")
	as(viewer, "plan", "widgets").must(t, 0)
	as(viewer, "history", "widgets").must(t, 0, "Succeeded")
	as(viewer, "denied", "widgets").must(t, 0)
	as(viewer, "migrate", "widgets").must(t, 1).tell(t, `User "viewer" cannot create resource "storageversionmigrations"`)
	c.kubectl(t, operator, "", "patch", "storagestates.migration.k8s.io", "widgets.example.com", "--subresource=status",
		"--type=merge", `--patch={"status":{"persistedStorageVersionHashes":[]}}`).must(t, 1).tell(t, "Forbidden")
}

// allow lets the stranger do something with resources.
func (c *cluster) allow(t *testing.T, role, verb, resources string, flags ...string) {
	t.Helper()
	for _, args := range [][]string{
		{"create", role, stranger, "--verb=" + verb, "--resource=" + resources},
		{"create", role + "binding", stranger, "--" + role + "=" + stranger, "--user=" + stranger},
	} {
		c.kubectl(t, administrator, "", append(args, flags...)...).must(t, 0)
	}
}

// awaitStranger polls until the stranger gets that answer about the widgets.
func (c *cluster) awaitStranger(t *testing.T, code int, printed ...string) {
	t.Helper()
	framework.Eventually(t, soon, func(context.Context) error {
		answer := c.kubectl(t, stranger, "", "svm", "status", "widgets")
		lacks := func(part string) bool { return !strings.Contains(answer.out, part) }
		if answer.code != code || slices.ContainsFunc(printed, lacks) {
			return fmt.Errorf("want exit code %d and %q: %s", code, printed, answer)
		}
		return nil
	})
}

func testNames(t *testing.T, c *cluster) {
	c.svm(t, "status", "wigdets").must(t, 1).tell(t, `no resource is named "wigdets": write its plural`)
	c.svm(t, "status", "storageversionmigrations").must(t, 1).tell(t, "names 2 resources",
		"storageversionmigrations.migration.k8s.io, storageversionmigrations.storagemigration.k8s.io")
	c.svm(t, "status", "widgets", "-o", "xml").must(t, 1).tell(t, "use wide, json, yaml, name")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"status", "wid"}, "widgets.example.com\n"},
		{[]string{"su"}, "suspend\t"},
		{[]string{"suspend", "ev"}, "events-"},
		{[]string{"status", "-o", ""}, "yaml\n"},
	} {
		args := append([]string{"__complete", "svm"}, test.args...)
		answer := c.kubectl(t, administrator, "", args...).must(t, 0, test.want)
		if strings.Contains(answer.out, "secrets") {
			t.Errorf("%q completes to what does not begin so: %s", test.args, answer)
		}
	}
	verbs := []string{"status", "plan", "migrate", "retry", "pause", "resume", "suspend", "denied", "history"}
	for _, verb := range verbs {
		c.svm(t, verb, "--help").must(t, 0, "Examples:", "kubectl svm "+verb)
	}
}

// testColour runs the plugin on a terminal.
func testColour(t *testing.T, c *cluster) {
	const green = "\x1b[32mSafe to remove old versions"
	if screen := c.onTerminal(t, "TERM=xterm"); !strings.Contains(screen, green) {
		t.Errorf("no colour on a terminal: %q", screen)
	}
	for _, without := range []string{"NO_COLOR=1", "TERM=dumb"} {
		screen := c.onTerminal(t, without)
		if strings.Contains(screen, "\x1b") || !strings.Contains(screen, "Safe to remove old versions") {
			t.Errorf("colour on a terminal with %s: %q", without, screen)
		}
	}
}

// onTerminal returns what status prints on a terminal.
func (c *cluster) onTerminal(t *testing.T, environment string) string {
	t.Helper()
	primary, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = primary.Close() }()
	if err := unix.IoctlSetPointerInt(int(primary.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(primary.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	command := c.command(t, administrator, "svm", "status", "widgets")
	command.Env = append(command.Env, environment)
	command.Stdout, command.Stderr = terminal, terminal
	err = command.Start()
	_ = terminal.Close()
	if err != nil {
		t.Fatal(err)
	}
	var screen bytes.Buffer
	_, _ = io.Copy(&screen, primary) // It ends with an error when nobody has the terminal open any more.
	if err := command.Wait(); err != nil {
		t.Errorf("%v: %s", err, screen.String())
	}
	return screen.String()
}
