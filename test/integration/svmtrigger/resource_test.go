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

package svmtrigger

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// resource is a resource, and where etcd has its objects.
type resource struct {
	schema.GroupResource
	kind   string
	prefix string
}

// builtIn is a resource of kube-apiserver.
func builtIn(group, plural, kind string) resource {
	return resource{schema.GroupResource{Group: group, Resource: plural}, kind, "/registry/" + plural + "/"}
}

// custom is the resource of a definition of ours.
func custom(group, plural, kind string) resource {
	return resource{schema.GroupResource{Group: group, Resource: plural}, kind, "/registry/" + group + "/" + plural + "/"}
}

var (
	policies = builtIn("admissionregistration.k8s.io", "mutatingadmissionpolicies", "MutatingAdmissionPolicy")
	bindings = builtIn("admissionregistration.k8s.io", "mutatingadmissionpolicybindings",
		"MutatingAdmissionPolicyBinding")
	configMaps = builtIn("", "configmaps", "ConfigMap")
	flowSchema = resource{schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"},
		"FlowSchema", "/registry/flowschemas/"}
)

// hash is that of the encoding of the version.
func (r resource) hash(version string) string {
	return discovery.StorageVersionHash(r.Group, version, r.kind)
}

// hashes are those of the versions, sorted.
func (r resource) hashes(versions ...string) []string {
	var hashes []string
	for _, version := range versions {
		hashes = append(hashes, r.hash(version))
	}
	slices.Sort(hashes)
	return hashes
}

// hashOfStored is the hash of the encoding that an object was found in: "apps/v1" or "v1".
func hashOfStored(encoding, kind string) string {
	gv, err := schema.ParseGroupVersion(encoding)
	if err != nil {
		return ""
	}
	return discovery.StorageVersionHash(gv.Group, gv.Version, kind)
}

// words is all that the state says.
func words(state *v1alpha1.StorageState) string {
	if state == nil {
		return "no state"
	}
	status, err := json.Marshal(state.Status)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s: %s", state.Name, status)
}

// persisted are the hashes that the state lists; an empty list means Unknown.
func persisted(state *v1alpha1.StorageState) []string {
	if len(state.Status.PersistedStorageVersionHashes) == 0 {
		return []string{v1alpha1.Unknown}
	}
	return state.Status.PersistedStorageVersionHashes
}

// certain says that the state excludes encodings that it does not list.
func certain(state *v1alpha1.StorageState) bool {
	return !slices.Contains(persisted(state), v1alpha1.Unknown)
}

func covers(state *v1alpha1.StorageState, hash string) bool {
	return !certain(state) || slices.Contains(persisted(state), hash)
}

// lists complains unless the state lists exactly these hashes.
func (c *cluster) lists(r resource, hashes []string) error {
	state := c.state(r.String())
	if state == nil {
		return fmt.Errorf("there is no state of %s", r)
	}
	got := slices.Clone(persisted(state))
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(hashes)); !slices.Equal(got, want) {
		return fmt.Errorf("%s lists %v, want %v", words(state), got, want)
	}
	return nil
}

// listed complains unless a write of the state after a revision listed exactly the hashes of these versions, with one
// of them current. The state may list fewer by now, because a migration has succeeded.
func (c *cluster) listed(r resource, after int64, current string, versions ...string) error {
	for _, write := range c.stateWrites(r.String(), after) {
		if write.state != nil && write.state.Status.CurrentStorageVersionHash == r.hash(current) &&
			slices.Equal(slices.Sorted(slices.Values(persisted(write.state))), r.hashes(versions...)) {
			return nil
		}
	}
	return fmt.Errorf("no state lists %v while %s is current: %s", versions, current, c.lifeOf(r.String(), after))
}

// migrated complains unless the state says that everything is stored in that version.
func (c *cluster) migrated(r resource, version string) error {
	if err := c.lists(r, r.hashes(version)); err != nil {
		return err
	}
	return errors.Join(
		c.writes(r, version),
		c.says(r, v1alpha1.StorageStateAgreed, metav1.ConditionTrue, v1alpha1.StateReasonServersAgree),
		c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionTrue, v1alpha1.StateReasonOnlyCurrentEncoding))
}

// writes complains unless the state says that objects are written in that version.
func (c *cluster) writes(r resource, version string) error {
	state := c.state(r.String())
	if state == nil {
		return fmt.Errorf("there is no state of %s", r)
	}
	want := v1alpha1.Unknown
	if version != v1alpha1.Unknown {
		want = r.hash(version)
	}
	if state.Status.CurrentStorageVersionHash != want {
		return fmt.Errorf("%s, want that %s (%s) is current", words(state), want, version)
	}
	return nil
}

// says complains unless the condition is there with that status, and one of the reasons if any are named.
func (c *cluster) says(r resource, condition string, status metav1.ConditionStatus, reasons ...string) error {
	state := c.state(r.String())
	if state == nil {
		return fmt.Errorf("there is no state of %s", r)
	}
	got := meta.FindStatusCondition(state.Status.Conditions, condition)
	if got == nil || got.Status != status || len(reasons) > 0 && !slices.Contains(reasons, got.Reason) {
		return fmt.Errorf("%s, want %s=%s because of %v", words(state), condition, status, reasons)
	}
	return nil
}

// migrationCount complains unless that many migrations of the resource were created after a revision.
func (c *cluster) migrationCount(r resource, after int64, want int) error {
	if got := c.migrationsOf(r.GroupResource, after); len(got) != want {
		return fmt.Errorf("%d migrations of %s, want %d: %v (%s)", len(got), r, want, got, words(c.state(r.String())))
	}
	return nil
}
