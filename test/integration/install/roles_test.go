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

package install

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const builtInFile = manifests + "/rbac/migrate/built-in.yaml"

var updateRole = flag.Bool("update-role", false, "Write "+builtInFile+" instead of comparing it.")

// builtInHeader explains every rule, because all have the same reasons.
const builtInHeader = `# Generated: go test ./test/integration/install -run TestBuiltInRole -update-role
#
# The permissions to rewrite every resource that kube-apiserver can serve, by group. Take out what must not be migrated.
# - list: the metadata of all objects, by which they are found.
# - get: a whole object, before a dry run of its rewrite shows whether a mutating webhook or policy would change it; and
#   the metadata of an object that somebody else wrote meanwhile.
# - patch: the rewrite. The fence lets it change nothing. Through the status, if the resource itself is refused.
# With the permission for namespaces the manager also checks the fence: a dry run of a label for kube-system.
# Events are listed only: they expire. Admission objects (admissionregistration.k8s.io) are left out, because whoever
# may patch policies can remove the fence, which is not asked about policies and their bindings.
`

// TestBuiltInRole compares the role with what kube-apiserver serves when all its APIs are on.
func TestBuiltInRole(t *testing.T) {
	t.Parallel()
	c := startCluster(t, controlplane.StorageVersionAPI(controlplane.Server{
		AllowAll:      true,
		FeatureGates:  map[string]bool{"AllAlpha": true, "AllBeta": true},
		RuntimeConfig: []string{"api/all=true"},
	}))
	want := &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: "svm-controller-manager:built-in"},
		Rules:      install.Rules(install.Resources(c.documents(t))),
	}
	if *updateRole {
		content, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(builtInFile, append([]byte(builtInHeader), content...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(builtInFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got := find[rbacv1.ClusterRole](t, decode(t, file), "ClusterRole", "", want.Name)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("run the test with -update-role; -want +got:\n%s", diff)
	}
}

// documents are the discovery documents of all versions of all groups.
func (c *cluster) documents(t *testing.T) []*metav1.APIResourceList {
	t.Helper()
	_, documents, err := c.Kube.Discovery().ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	return documents
}

// TestBasesRender renders each folder by itself, as somebody would who puts an overlay together.
func TestBasesRender(t *testing.T) {
	folders, err := filepath.Glob(manifests + "/*/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	below, err := filepath.Glob(manifests + "/[^c]*/*/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(folders, below...) {
		folder, err := filepath.Rel(manifests, filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(folder, func(t *testing.T) {
			if len(render(t, folder)) == 0 {
				t.Error("the folder has no objects")
			}
		})
	}
}

// TestRoles wants no manifest to allow more than was thought about.
func TestRoles(t *testing.T) {
	for _, overlay := range []string{"default", "static-pod", "observe-only", "replace-kube-storage-version-migrator"} {
		t.Run(overlay, func(t *testing.T) {
			objects := render(t, "overlays/"+overlay)
			for _, object := range objects {
				kind := object.GetKind()
				if kind != "ClusterRole" && kind != "Role" {
					continue
				}
				role := find[rbacv1.ClusterRole](t, objects, kind, object.GetNamespace(), object.GetName())
				for _, rule := range role.Rules {
					checkRule(t, role.Name, rule)
					if overlay == "observe-only" && role.Name != "svm-controller-manager:operate" { // That one is for people.
						checkReadOnly(t, role.Name, rule)
					}
				}
			}
		})
	}
}

func checkRule(t *testing.T, role string, rule rbacv1.PolicyRule) {
	t.Helper()
	all := slices.Concat(rule.Verbs, rule.APIGroups, rule.Resources, rule.NonResourceURLs)
	if strings.Contains(strings.Join(all, " "), "*") {
		t.Errorf("%s has a wildcard: %v", role, rule)
	}
	if slices.Contains(rule.APIGroups, admissionGroup) {
		t.Errorf("%s is about admission objects: %v", role, rule)
	}
	if sets.New(rule.Verbs...).HasAny("bind", "escalate", "impersonate", "deletecollection") {
		t.Errorf("%s has a verb that nothing needs: %v", role, rule)
	}
}

// checkReadOnly complains about writes of anything but the manager's own objects.
func checkReadOnly(t *testing.T, role string, rule rbacv1.PolicyRule) {
	t.Helper()
	own := sets.New(
		schema.GroupResource{Group: "migration.k8s.io", Resource: "storagestates"},
		schema.GroupResource{Group: "migration.k8s.io", Resource: "storagestates/status"},
		schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
		schema.GroupResource{Resource: "events"},
	)
	writes := sets.New(rule.Verbs...).Intersection(sets.New("create", "update", "patch", "delete"))
	if writes.Equal(sets.New("delete")) {
		own.Insert(schema.GroupResource{Group: "migration.k8s.io", Resource: "storageversionmigrations"})
	}
	if len(writes) == 0 {
		return
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			if !own.Has(schema.GroupResource{Group: group, Resource: resource}) {
				t.Errorf("%s lets an observer write %s of %q", role, resource, group)
			}
		}
	}
}
