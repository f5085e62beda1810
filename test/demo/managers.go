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
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// hasty are the flags in which the demo differs from an installation. It does not take long, and shows policies.
var hasty = []string{
	"--settle-period=5s",
	"--leader-elect-lease-duration=8s", "--leader-elect-renew-deadline=6s", "--leader-elect-retry-period=500ms",
	"--max-rewrites-per-second=150", "--migration-chunk-size=100",
	"--auto-migrate=*,-*." + policies.Group + "," + policies.String() + "," + policyBindings.String(),
}

// identity is the user that the manifests for static pods name.
const identity = "system:svm-controller-manager"

// unrecorded is how many objects the leader has rewritten, since it last saved its progress, when it is killed. It is
// less than a chunk.
const unrecorded = 40

func (d *demo) showManagers(ctx context.Context) error {
	d.out.step("Installing the manifests and starting two managers: one leads, one stands by")
	if err := d.install(ctx); err != nil {
		return err
	}
	d.out.explain("The managers are %s. By its roles this user may read metadata and patch, and the fence, a "+
		"ValidatingAdmissionPolicy, refuses every patch that changes something. The default roles leave out admission "+
		"objects; this demo allows MutatingAdmissionPolicies, to show an upgrade.", identity)
	err := d.allow(ctx, "mutating-policies", policies.String(), policyBindings.String())
	if err != nil {
		return err
	}
	d.out.command("%s %s", names.Manager, strings.Join(hasty[:1], " "))
	d.out.explain("In this demo the servers have to agree for 5 s before a migration starts. The default is 65 s, " +
		"because a write that began before a change may end as late as the request timeout of the API servers, which " +
		"is 60 s. The demo also has leases of 8 s instead of 15 s, and at most 150 rewrites a second instead of no bound.")
	for _, name := range []string{"manager-a", "manager-b"} {
		if err := d.startManager(name); err != nil {
			return err
		}
	}
	leader, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.out.saw("%s leads and runs its controllers", leader)
	return d.showFirstLook(ctx)
}

// allow lets the managers migrate resources that the default roles do not name.
func (d *demo) allow(ctx context.Context, role string, resources ...string) error {
	for _, args := range [][]string{
		{"create", "clusterrole", role, "--verb=get,list,patch", "--resource=" + strings.Join(resources, ",")},
		{"create", "clusterrolebinding", role, "--clusterrole=" + role, "--user=" + identity},
	} {
		d.out.command("kubectl %s", strings.Join(args, " "))
		if _, err := d.quietly(ctx, args); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) startManager(name string) error {
	binary, err := controlplane.Binary(names.Manager)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(d.cp.Dir(), name+".kubeconfig")
	if err := d.cp.WriteKubeconfig(kubeconfig, d.cp.Config(identity)); err != nil {
		return err
	}
	port, err := controlplane.FreePort()
	if err != nil {
		return err
	}
	args := append([]string{
		"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "-v=2",
	}, hasty...)
	d.managers[name], err = d.cp.StartProcess(controlplane.Program{Name: name, Path: binary, Args: args})
	return err
}

// awaitLeader waits for a manager whose controllers run, and returns its name.
func (d *demo) awaitLeader(ctx context.Context) (leader string, err error) {
	err = d.until(ctx, "a manager leads", func(context.Context) (bool, error) {
		for name, process := range d.managers {
			if strings.Contains(process.Log(), "Controller runs") {
				leader = name
			}
		}
		return leader != "", nil
	})
	return leader, err
}

// killLeader kills the leader when it has rewritten more objects than it has saved as progress.
func (d *demo) killLeader(ctx context.Context, recorded int64) error {
	leader, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	rewritten := int64(0)
	err = d.until(ctx, "objects are rewritten", func(ctx context.Context) (bool, error) {
		counts, err := d.count(ctx)
		rewritten = int64(counts[newOne.GroupVersion().String()])
		return rewritten >= recorded+unrecorded, err
	})
	if err != nil {
		return err
	}
	d.out.warn("kill -9 %d: this is %s, the leader; etcd has %s rewritten objects now",
		d.managers[leader].Pid(), leader, number(rewritten))
	if err := d.managers[leader].Kill(); err != nil {
		return err
	}
	killed := time.Now()
	delete(d.managers, leader)
	heir, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.out.saw("%s leads %s later, when the lease of %s has expired, and continues from the progress that %s saved",
		heir, seconds(time.Since(killed)), leader, leader)
	return nil
}

// showFirstLook waits until the manager knows in which encodings all existing objects are stored.
func (d *demo) showFirstLook(ctx context.Context) error {
	d.out.explain("There is no record of the past. So each resource starts with Unknown, until a migration has proven " +
		"in which encoding its objects are stored.")
	began := time.Now()
	states, done, told := 0, 0, 0
	var left []string
	err := d.until(ctx, "everything was migrated once", func(ctx context.Context) (bool, error) {
		list, err := d.migration.MigrationV1alpha1().StorageStates().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, fmt.Errorf("listing storage states: %w", err)
		}
		states, done, left = len(list.Items), 0, nil
		for i := range list.Items {
			migrated, why := finished(&list.Items[i])
			if migrated || why != "" {
				done++
			}
			if why != "" {
				left = append(left, fmt.Sprintf("%s (%s)", list.Items[i].Name, why))
			}
		}
		if done < states && done-told > states/4 {
			told = done
			d.out.saw("%d of %d resources", done, states)
		}
		return states > 0 && states == done, nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d: %w", done, states, err)
	}
	migrations, err := d.migration.MigrationV1alpha1().StorageVersionMigrations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing migrations: %w", err)
	}
	d.out.saw("%d resources have a StorageState; after %s, %d migrations have proven how they are stored",
		states, seconds(time.Since(began)), len(migrations.Items))
	if len(left) > 0 {
		d.out.explain("Not migrated yet: %s.", strings.Join(left, ", "))
	}
	return nil
}
