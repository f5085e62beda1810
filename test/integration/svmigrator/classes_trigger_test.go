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
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const coinCount = 160

// testWithTrigger runs all controllers in one process, as it is installed: nobody makes a migration by hand.
func testWithTrigger(t *testing.T, c *cluster) {
	coins := newCustom("coins", "Coin")
	c.define(t, coins)
	c.fill(t, coins, "coin", coinCount)
	c.startManager(t, "manager", "--controllers=*", "--auto-migrate=*."+coins.Group,
		"--feature-gates=StatusSubresourceFallback=false")
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.safe(ctx, coins, "v1") })
	first := c.migrationsOf(t, coins)
	if len(first) != 1 {
		t.Fatalf("a first installation made %d migrations", len(first))
	}

	judge := c.judge(t, coins.GroupResource)
	c.flip(t, coins, "v2")
	framework.Eventually(t, 2*soon, func(ctx context.Context) error { return c.safe(ctx, coins, "v2") })
	judge.stored(t, coins.encoding("v2"))
	judge.onlyEncodings(t, 1)
	if versions := c.storedVersions(t, coins); !sameStrings(versions, "v2") {
		t.Errorf("status.storedVersions is %v", versions)
	}
	// Whatever the end of the migration changed, the definition's status for one, is no reason for another.
	framework.During(t, 3*settle, func(context.Context) error {
		if now := len(c.migrationsOf(t, coins)); now != 2 {
			return fmt.Errorf("the flip made %d migrations", now-1)
		}
		return nil
	})
	for uid, m := range c.migrationsOf(t, coins) {
		if _, old := first[uid]; old {
			continue
		}
		mustSucceed(t, &m)
		progress(t, &m, v1alpha1.MigrationProgress{Rewritten: coinCount})
		if target := m.Status.Target; target.EncodingVersion != coins.encoding("v2") || target.Epoch == nil ||
			*target.Epoch != *m.Spec.Target.Epoch {
			t.Errorf("%s was made for another target", words(&m))
		}
	}
	if err := c.safe(t.Context(), coins, "v2"); err != nil {
		t.Error(err)
	}
	t.Run("the next attempt tries only denied objects", func(t *testing.T) {
		testRetryOfDenied(t, c, coins, "v1", []string{coinNamed(7)}, 0)
	})
	t.Run("more than the status can name", func(t *testing.T) {
		var denied []string
		for i := range v1alpha1.MaxDeniedObjects + 10 {
			denied = append(denied, coinNamed(i))
		}
		testRetryOfDenied(t, c, coins, "v2", denied, 2) // Somebody else may be in the way of the first.
	})
}

func coinNamed(i int) string { return fmt.Sprintf("coin-%05d", i) }

// testRetryOfDenied has a migration fail because of some objects, and wants the next one to rewrite no other.
// It may list the objects mostLists times.
func testRetryOfDenied(t *testing.T, c *cluster, coins custom, version string, denied []string, mostLists int) {
	judge := c.judge(t, coins.GroupResource)
	c.seal(t, coins, fmt.Sprintf("object.metadata.name in ['%s']", strings.Join(denied, "', '")), denied[0])
	c.flip(t, coins, version)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return c.saysMigrated(ctx, coins, v1alpha1.StateReasonMigrationFailed)
	})
	judge.stored(t, coins.encoding(version), denied...)
	c.unseal(t, coins, denied[0])
	retried := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"retryToken":"the policy is gone, %s"}}`, version)
	_, err := c.Migration.MigrationV1alpha1().StorageStates().
		Patch(t.Context(), coins.String(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.safe(ctx, coins, version) })
	judge.stored(t, coins.encoding(version))
	judge.onlyEncodings(t, 1)
	tries := c.tries(t, coins.GroupResource, retried)
	for name := range tries {
		if !slices.Contains(denied, name) {
			t.Errorf("the next attempt has rewritten %s", name)
		}
	}
	if len(tries) != len(denied) {
		t.Errorf("the next attempt has tried %d objects, want %d", len(tries), len(denied))
	}
	lists, err := c.Requests(controlplane.RequestFilter{
		Users: []string{framework.ManagerUser}, Verbs: []string{"list"}, Since: retried,
		Resources: []schema.GroupResource{coins.GroupResource},
	})
	if err != nil || lists.Total() > mostLists {
		t.Errorf("the next attempt has listed the objects %d times, want %d at most (%v)", lists.Total(), mostLists, err)
	}
}

// saysMigrated complains unless the condition Migrated of a resource has the reason.
func (c *cluster) saysMigrated(ctx context.Context, r custom, reason string) error {
	state, err := c.Migration.MigrationV1alpha1().StorageStates().Get(ctx, r.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	condition := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateMigrated)
	if condition == nil || condition.Reason != reason {
		return fmt.Errorf("the condition is %+v, want the reason %s", condition, reason)
	}
	return nil
}

// migrationsOf are all migrations of a resource.
func (c *cluster) migrationsOf(t *testing.T, r custom) map[types.UID]v1alpha1.StorageVersionMigration {
	t.Helper()
	list, err := c.Migrations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[types.UID]v1alpha1.StorageVersionMigration{}
	for _, m := range list.Items {
		if m.Spec.Resource.Group == r.Group && m.Spec.Resource.Resource == r.Resource {
			found[m.UID] = m
		}
	}
	return found
}

// safe complains unless the StorageState says that all objects are stored at the version, and that the others may go.
func (c *cluster) safe(ctx context.Context, r custom, version string) error {
	state, err := c.States().Get(ctx, r.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	hash := storageversion.Hash(r.WithVersion(version).GroupVersion(), r.kind)
	if state.Status.CurrentStorageVersionHash != hash || !sameStrings(state.Status.PersistedStorageVersionHashes, hash) {
		return fmt.Errorf(
			"%s has %v persisted and %s current, want only %s",
			state.Name,
			state.Status.PersistedStorageVersionHashes,
			state.Status.CurrentStorageVersionHash,
			hash,
		)
	}
	missing := map[string]bool{v1alpha1.StorageStateMigrated: true, v1alpha1.StorageStateSafeToRemoveOldVersions: true}
	var errs []error
	for _, condition := range state.Status.Conditions {
		if missing[condition.Type] && condition.Status != metav1.ConditionTrue {
			errs = append(errs, fmt.Errorf("%s is %s: %s", condition.Type, condition.Status, condition.Message))
		}
		delete(missing, condition.Type)
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("%s lacks conditions: %v", state.Name, missing))
	}
	return errors.Join(errs...)
}
