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

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// showCrontabs creates the objects of the demo. The API servers deny updates of one of them.
func (d *demo) showCrontabs(ctx context.Context) error {
	d.out.step("Somebody has %s crontabs, stored as v1, and one more that nobody may update", number(objects))
	if err := d.define(ctx, definition(oldOne.Version)); err != nil {
		return err
	}
	d.out.explain("The manager needs a permission for each custom resource.")
	if err := d.allow(ctx, crontabs.Resource, crontabs.String()); err != nil {
		return err
	}
	err := d.untilState(ctx, "everything is stored as v1", func(state *migrationv1alpha1.StorageState) bool {
		return holds(state, migrationv1alpha1.StorageStateSafeToRemoveOldVersions)
	})
	if err != nil {
		return err
	}
	d.out.saw("%s is defined, and known to be stored as v1 only", crontabs)
	if err := d.fill(ctx); err != nil {
		return err
	}
	if err := d.freeze(ctx); err != nil {
		return err
	}
	d.out.explain("A ValidatingAdmissionPolicy denies updates of %q: %q.", frozen, denial)
	var counts string
	if d.stored, counts, err = d.readStored(ctx); err != nil {
		return err
	}
	d.out.saw("etcd has %s", counts)
	return d.showState(ctx)
}

// showChange changes the storage version.
func (d *demo) showChange(ctx context.Context) error {
	d.out.step("The definition changes: v2 is the storage version now")
	d.out.command(`kubectl edit crd %s   # v1: storage: false, v2: storage: true`, crontabs)
	err := d.change(ctx, metav1.UpdateOptions{}, func(live *apiextensionsv1.CustomResourceDefinition) {
		live.Spec.Versions = definition(newOne.Version).Spec.Versions
	})
	if err != nil {
		return fmt.Errorf("changing the storage version: %w", err)
	}
	d.flipped = time.Now()
	err = d.untilState(ctx, "v2 is current and v1 is persisted", func(state *migrationv1alpha1.StorageState) bool {
		both := []string{oldOne.GroupVersion().String(), newOne.GroupVersion().String()}
		persisted := slices.Sorted(slices.Values(state.Status.PersistedEncodingVersions))
		return state.Status.CurrentEncodingVersion == both[1] && slices.Equal(persisted, both)
	})
	if err != nil {
		return err
	}
	d.out.saw("recorded %d ms later: from now on crontabs may be stored as v1 or as v2",
		time.Since(d.flipped).Milliseconds())
	return d.showState(ctx)
}

// showFirstAttempt follows a migration whose manager is killed, and that cannot rewrite one object.
func (d *demo) showFirstAttempt(ctx context.Context) error {
	d.out.step("The trigger creates a migration, the migrator rewrites every object, and its process is killed")
	m, err := d.awaitMigration(ctx)
	if err != nil {
		return err
	}
	d.out.saw("%s was created %s after the change: the settle period is over", m.Name, seconds(time.Since(d.flipped)))
	if m, err = d.follow(ctx, d.killLeader); err != nil {
		return err
	}
	if err := mustEnd(m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied); err != nil {
		return err
	}
	if err := d.kubectl(ctx, []string{"svm", "denied", crontabs.String()}, notSafe); err != nil {
		return err
	}
	if p := m.Status.Progress; p != nil && p.WrittenByOthers > 0 {
		d.out.explain("Written by others are the objects that the killed process rewrote after it last saved its progress.")
	}
	return d.showWrites(ctx)
}

// showWrites compares what etcd has with what it had before the migration.
func (d *demo) showWrites(ctx context.Context) error {
	after, counts, err := d.readStored(ctx)
	if err != nil {
		return err
	}
	d.out.saw("etcd has %s", counts)
	changes := controlplane.CompareStored(d.stored, after)
	d.stored = after
	if err := changes.OnlyEncodings(); err != nil {
		return fmt.Errorf("the migration changed objects: %w", err)
	}
	once, never := 0, 0
	for key, writes := range changes.Writes {
		switch writes {
		case 0:
			never++
		case 1:
			once++
		default:
			return fmt.Errorf("%s was written %d times", key, writes)
		}
	}
	d.out.saw("writes since the last count, according to etcd: %s objects once, %s never, none twice; "+
		"only encodings changed", number(once), number(never))
	return nil
}

// showOnce shows the state once that is reached, and returns the versions that the definition lists as stored then.
func (d *demo) showOnce(
	ctx context.Context, what string, reached func(*migrationv1alpha1.StorageState) bool,
) ([]string, error) {
	if err := d.untilState(ctx, what, reached); err != nil {
		return nil, err
	}
	if err := d.showState(ctx); err != nil {
		return nil, err
	}
	return d.storedVersions(ctx)
}

// showRefusal shows that the state and the API server keep people from dropping v1.
func (d *demo) showRefusal(ctx context.Context) error {
	d.out.step("So v1 is still needed, and both the state and the API server say so")
	versions, err := d.showOnce(ctx, "the migration failed", func(state *migrationv1alpha1.StorageState) bool {
		return state.Status.Backoff != nil
	})
	if err != nil {
		return err
	}
	d.out.saw("status.storedVersions of the definition is still %q", versions)
	d.out.command("kubectl edit crd %s   # without v1", crontabs)
	answer, err := refused(d.change(ctx, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}, dropOldVersion))
	if err != nil {
		return fmt.Errorf("trying to drop v1: %w", err)
	}
	d.out.warn("%s", answer)
	return nil
}

// showSecondAttempt requests another migration after the policy is deleted.
func (d *demo) showSecondAttempt(ctx context.Context) error {
	d.out.step("The audit is over: the administrator deletes the policy and requests another attempt")
	d.out.command("kubectl delete validatingadmissionpolicy,validatingadmissionpolicybinding %s", policy)
	if err := d.thaw(ctx); err != nil {
		return err
	}
	asked := time.Now()
	if err := d.kubectl(ctx, []string{"svm", "retry", crontabs.String()}); err != nil {
		return err
	}
	m, err := d.awaitMigration(ctx)
	if err != nil {
		return err
	}
	d.out.saw("%s was created %s later", m.Name, seconds(time.Since(asked)))
	if m, err = d.follow(ctx, nil); err != nil {
		return err
	}
	err = mustEnd(m, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated)
	if err != nil {
		return err
	}
	return d.showWrites(ctx)
}

// showRemoval drops the old version.
func (d *demo) showRemoval(ctx context.Context) error {
	d.out.step("It is proven that every object is stored as v2, so v1 can be dropped")
	versions, err := d.showOnce(ctx, "old versions may be removed", func(state *migrationv1alpha1.StorageState) bool {
		return holds(state, migrationv1alpha1.StorageStateSafeToRemoveOldVersions)
	})
	if err != nil {
		return err
	}
	d.out.saw("status.storedVersions of the definition is %q", versions)
	d.out.command("kubectl edit crd %s   # without v1", crontabs)
	if err := d.change(ctx, metav1.UpdateOptions{}, dropOldVersion); err != nil {
		return fmt.Errorf("dropping v1: %w", err)
	}
	err = d.until(ctx, "all crontabs can be read", func(ctx context.Context) (bool, error) {
		list, err := d.dynamic.Resource(newOne).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == objects+1, err
	})
	if err != nil {
		return err
	}
	d.out.saw("the API server accepts the change, and reads all %s crontabs", number(objects+1))
	return nil
}
