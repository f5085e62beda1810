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
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// protocol takes down what a judge says.
type protocol struct {
	mu    sync.Mutex
	found []string
}

func (p *protocol) Errorf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = append(p.found, fmt.Sprintf(format, args...))
}

func (p *protocol) Logf(string, ...any) {}

// convicts complains unless the judge said something that contains a text.
func (p *protocol) convicts(text string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.found, func(said string) bool { return strings.Contains(said, text) }) {
		return fmt.Errorf("the judge did not say %q, only %q", text, p.found)
	}
	return nil
}

// shortGrace is that of judges before whom nobody needs time to find out.
const shortGrace = 3

// testTheJudgeConvicts plays controllers that break P1, because a judge that never finds anything is none. No manager
// runs.
func testTheJudgeConvicts(t *testing.T, c *cluster) {
	hasty := custom(customGroup, "hasties", "Hasty")
	forgetful := custom(customGroup, "forgetfuls", "Forgetful")
	honestly := custom(customGroup, "honestlies", "Honestly")
	c.define(t, hasty, forgetful, honestly)
	for _, r := range []resource{hasty, forgetful, honestly} {
		c.create(t, r, "old")
		c.flip(t, r, "v2")
		c.createStoredAs(t, r, "new", "v2")
	}
	guilty, innocent := &protocol{}, &protocol{}
	startJudgeFor(t, guilty, shortGrace, c, hasty, forgetful)
	startJudgeFor(t, innocent, shortGrace, c, honestly)

	c.record(t, forgetful, forgetful.hash("v2"))
	c.record(t, hasty, v1alpha1.Unknown, hasty.hash("v2"), hasty.hash("v1"))
	c.record(t, hasty, hasty.hash("v2"))
	framework.EventuallySeen(t, soon, func() error {
		return errors.Join(
			guilty.convicts("[Unknown] left "+forgetful.String()),
			guilty.convicts("/forgetfuls/default/old is stored as "+customGroup+"/v1"),
			guilty.convicts("without a proof: none of 0 migrations"),
			guilty.convicts(" is stored as "+customGroup+"/v1 "+hasty.hash("v1")+", which leaves "+hasty.String()))
	})

	// The same in the right order is right.
	c.record(t, honestly, v1alpha1.Unknown, honestly.hash("v2"), honestly.hash("v1"))
	startMigrator(t, c)
	migration := &v1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "by-hand-"},
		Spec: v1alpha1.StorageVersionMigrationSpec{Resource: v1alpha1.GroupVersionResource{Group: honestly.Group,
			Version: "v2", Resource: honestly.Resource}},
	}
	if _, err := c.Migrations().Create(t.Context(), migration,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.EventuallySeen(t, soon, func() error {
		lives := c.migrationsOf(honestly.GroupResource, 0)
		if len(lives) == 0 || !hasCondition(lives[0].last(), v1alpha1.MigrationSucceeded) {
			return fmt.Errorf("the migration has not succeeded: %v", lives)
		}
		return nil
	})
	c.record(t, honestly, honestly.hash("v2"))
	framework.During(t, (shortGrace+10)*judgeInterval, func(context.Context) error {
		innocent.mu.Lock()
		defer innocent.mu.Unlock()
		return errors.Join(complaints(innocent.found)...)
	})
}

func complaints(found []string) []error {
	var errs []error
	for _, said := range found {
		errs = append(errs, errors.New(said))
	}
	return errs
}

// record writes a state as a controller would that takes v2 for the current version and lists these hashes.
func (c *cluster) record(t *testing.T, r resource, listed ...string) {
	t.Helper()
	states := c.States()
	if c.state(r.String()) == nil {
		state := &v1alpha1.StorageState{
			ObjectMeta: metav1.ObjectMeta{Name: r.String()},
			Spec:       v1alpha1.StorageStateSpec{Resource: v1alpha1.GroupResource{Group: r.Group, Resource: r.Resource}},
		}
		_, err := states.Create(t.Context(), state, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) { // The history may not have it yet.
			t.Fatal(err)
		}
	}
	// Long enough ago to have settled.
	patch := fmt.Appendf(nil, `{"status":{"epoch":1,"epochStartTime":"2020-01-01T00:00:00Z",`+
		`"currentStorageVersionHash":%q,"persistedStorageVersionHashes":["%s"]}}`, r.hash("v2"), strings.Join(listed, `","`))
	if _, err := states.Patch(t.Context(), r.String(), types.MergePatchType, patch, metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
}
