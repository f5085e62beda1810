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

package api

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	root = "../../.."
	// documentedResource and documentedMigration are those of which the documents speak.
	documentedResource  = "widgets.example.com"
	documentedMigration = "widgets-x7k2p"
	// inTreeGroup has a resource of the name of ours, which kubectl prefers.
	inTreeGroup     = "storagemigration.k8s.io"
	apiregistration = "apiregistration.k8s.io"
	longestCommand  = 2 * time.Minute
)

// elsewhere are folders with what this control plane lacks: definitions of the Prometheus operator, the namespace of
// the Job, which test/integration/install runs, and the kustomization that a reader writes.
var elsewhere = []string{"build/manifests/monitoring", "build/manifests/one-shot", "."}

// code is a code block or a code span of a document.
var code = regexp.MustCompile("(?s)\n```[a-z]*\n(.*?)\n```|`([^`\n]+)`")

// TestDocumentedCommands runs every kubectl command that the documents for users have, beside the in-tree API.
func TestDocumentedCommands(t *testing.T) {
	commands := documentedCommands(t)
	if len(commands) < 8 {
		t.Fatalf("found only these commands: %q", commands)
	}
	k := newKubectl(t)
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			t.Cleanup(func() { shared.clear(t) })
			k.prepare(t)
			about := v1alpha1.GroupName
			switch fields := strings.Fields(command); {
			case fields[1] == "apply":
				about = apiextensionsv1.GroupName
			case fields[1] == "events":
				about = corev1.GroupName
			case slices.Contains(fields, "leases"):
				about = coordinationv1.GroupName
			case slices.Contains(fields, "endpointslices"):
				about = discoveryv1.GroupName
			case slices.Contains(fields, "apiservices"):
				about = apiregistration
			case slices.Contains(fields, "clusterrole"), slices.Contains(fields, "clusterrolebinding"):
				about = rbacv1.GroupName
			}
			if groups := k.run(t, command, about); groups[inTreeGroup] > 0 {
				t.Errorf("the command reaches %s", inTreeGroup)
			}
		})
	}
	t.Run("the short name is ours", func(t *testing.T) {
		if groups := k.run(t, "kubectl get svm", v1alpha1.GroupName); groups[inTreeGroup] > 0 {
			t.Errorf("the command reaches %v", groups)
		}
	})
	t.Run("the plain name is not ours", func(t *testing.T) {
		k.run(t, "kubectl get storageversionmigrations", inTreeGroup) // or else documents need not write the full name
	})
}

// documentedCommands returns the commands that begin with kubectl and name what they are about. A command in a block
// includes the input that follows it.
func documentedCommands(t *testing.T) (commands []string) {
	t.Helper()
	paths, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, root+"/README.md") {
		document, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range code.FindAllStringSubmatch(string(document), -1) {
			if strings.HasPrefix(match[2], "kubectl ") {
				commands = append(commands, match[2])
			}
			commands = append(commands, commandsIn(match[1])...)
		}
	}
	slices.Sort(commands)
	return slices.DeleteFunc(slices.Compact(commands), func(command string) bool {
		fields := strings.Fields(command)
		// test/integration/plugin is about the plugin.
		return len(fields) < 3 || fields[1] == "svm" || slices.Contains(elsewhere, fields[len(fields)-1])
	})
}

func commandsIn(block string) (commands []string) {
	input := false
	for line := range strings.Lines(block) {
		switch {
		case input:
			commands[len(commands)-1] += line
			input = strings.TrimSpace(line) != "EOF"
		case strings.HasPrefix(line, "kubectl "):
			commands = append(commands, line)
			input = strings.Contains(line, "<<EOF")
		}
	}
	return commands
}

// kubectl runs commands as users of their own, so that the audit log tells what they reach.
type kubectl struct {
	path string
	runs int
}

func newKubectl(t *testing.T) *kubectl {
	t.Helper()
	if out, err := exec.Command(root+"/hack/build-controlplane.sh", "kubectl").CombinedOutput(); err != nil {
		t.Fatalf("building kubectl: %v\n%s", err, out)
	}
	folder, err := filepath.Abs(root + "/_output/bin")
	if err != nil {
		t.Fatal(err)
	}
	return &kubectl{path: folder + string(filepath.ListSeparator) + os.Getenv("PATH")}
}

// prepare creates the objects of which the documents speak.
func (k *kubectl) prepare(t *testing.T) {
	t.Helper()
	migration := objectOf(t, "StorageVersionMigration", documentedMigration, "spec", migrationOfDeployments)
	setPart(t, migration, "status",
		`{completionTime: "2030-01-01T00:00:00Z", conditions: [{type: Succeeded, status: "True"}]}`)
	shared.createWithStatus(t, migration)
	state := objectOf(t, "StorageState", documentedResource, "spec", `{resource: {group: example.com, resource: widgets}}`)
	setPart(t, state, "status", `{
		persistedStorageVersionHashes: [b=], currentStorageVersionHash: b=,
		conditions: [
			{type: Migrated, status: "True", reason: OnlyCurrentEncodingPersisted,
				message: "", lastTransitionTime: "2030-01-01T00:00:00Z"},
			{type: SafeToRemoveOldVersions, status: "True", reason: OnlyCurrentEncodingPersisted,
				message: "", lastTransitionTime: "2030-01-01T00:00:00Z"}]}`)
	shared.createWithStatus(t, state)
}

// run runs a command, wants it to succeed and to reach an API group, and returns how many requests it sent to each.
func (k *kubectl) run(t *testing.T, command, about string) map[string]int {
	t.Helper()
	k.runs++
	user, folder := fmt.Sprintf("reader-%d", k.runs), t.TempDir()
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := sharedPlane.WriteKubeconfig(kubeconfig, sharedPlane.Config(user, "system:masters")); err != nil {
		t.Fatal(err)
	}
	// Some wait for what only other controllers do.
	ctx, cancel := context.WithTimeout(t.Context(), longestCommand)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-ec", command)
	shell.WaitDelay = time.Second // What the shell has started keeps its output open.
	shell.Dir, shell.Env = root, []string{"KUBECONFIG=" + kubeconfig, "HOME=" + folder, "PATH=" + k.path}
	if out, err := shell.CombinedOutput(); err != nil {
		t.Errorf("%v, within %v:\n%s", err, longestCommand, out)
	}
	groups := map[string]int{}
	err := poll(t.Context(), func(context.Context) (bool, error) {
		clear(groups)
		_, err := sharedPlane.Requests(controlplane.RequestFilter{
			Users: []string{user},
			Match: func(event *auditv1.Event) bool {
				if event.ObjectRef != nil {
					groups[event.ObjectRef.APIGroup]++
				}
				return false
			},
		})
		return groups[about] > 0, err
	})
	if err != nil {
		t.Errorf("the command reaches %v, and not %q: %v", groups, about, err)
	}
	return groups
}
