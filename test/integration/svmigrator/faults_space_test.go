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
	"maps"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testSpaceInEtcd has an etcd whose quota has room for all objects, but not for a second revision of each. Events have
// another etcd. The migration must leave the quota alone, say what it waits for, and go on when the etcd of the objects
// was compacted, which happens only when it has said so, and which no API server does.
func testSpaceInEtcd(t *testing.T) {
	const (
		mebibyte = 1 << 20
		objects  = 200
		padding  = 100_000
		growth   = 6 * mebibyte
		quota    = 40 * mebibyte
	)
	cp := controlplane.Start(t, controlplane.Config{
		Servers: []controlplane.Server{{AllowAll: true, ExtraArgs: []string{"--etcd-compaction-interval=0"}}},
		Etcd:    controlplane.EtcdConfig{ExtraArgs: []string{fmt.Sprintf("--quota-backend-bytes=%d", quota)}},
	})
	moveEvents(t, cp)
	c := useCluster(t, cp, cp.AdminConfig())
	r := newCustom("bulks", "Bulk")
	r.padding = padding
	c.define(t, r)
	c.fill(t, r, "bulk", objects)
	c.flip(t, r, "v2")
	judge := c.judge(t, r.GroupResource)
	before := c.databaseSize(t)
	t.Logf("the database has %d MiB of %d MiB", before/mebibyte, quota/mebibyte)
	if before+objects*padding < quota {
		t.Fatal("the quota has room for a second revision of each object")
	}

	// At this rate what lies between the growth and the quota takes seconds, and one reading of the size is in time.
	manager := c.startManager(t, "manager", steadily(25, fmt.Sprintf("--max-storage-growth=%d", growth))...)
	c.migrate(t, r.Resource, r.WithVersion(""))
	said := map[string]bool{}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		alarms, err := c.Etcd().Client().AlarmList(ctx)
		if err == nil && len(alarms.Alarms) > 0 {
			t.Fatalf("etcd has raised an alarm: %v", alarms.Alarms)
		}
		m, err := c.fetch(ctx, r.Resource)
		if err != nil {
			return err
		}
		for _, c := range m.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				said[c.Reason+": "+c.Message] = true
			}
			// It also waits while an API server does not tell the size, as on a busy machine.
			grown := strings.Contains(c.Message, "has grown by")
			if c.Status == corev1.ConditionTrue && c.Reason == v1alpha1.MigrationReasonAwaitingStorageSpace && grown {
				if err := compact(ctx, cp.Etcd().Client()); err != nil {
					return err
				}
			}
		}
		if !m.Finished() {
			return fmt.Errorf("%s has not ended", words(m))
		}
		return nil
	})
	mustSucceed(t, c.ended(t, r.Resource, soon))
	told := slices.Sorted(maps.Keys(said))
	t.Logf("after %d pauses the database has grown by %d MiB; the migration said:\n%s",
		strings.Count(manager.Log(), "Migrations pause until there is space in etcd"), (c.databaseSize(t)-before)/mebibyte,
		strings.Join(told, "\n"))
	if !slices.ContainsFunc(told, func(s string) bool {
		return strings.HasPrefix(s, v1alpha1.MigrationReasonAwaitingStorageSpace+": The database file of etcd has grown by")
	}) {
		t.Error("the migration does not say what it waits for")
	}
	judge.stored(t, r.encoding("v2"))
	judge.onlyEncodings(t, 1)
}

// moveEvents gives events an etcd of their own.
func moveEvents(t *testing.T, cp *controlplane.ControlPlane) {
	t.Helper()
	clients := startEtcd(t, cp, "etcd-of-events")
	if err := cp.Servers()[0].Restart(func(s *controlplane.Server) {
		s.ExtraArgs = append(s.ExtraArgs, "--etcd-servers-overrides=/events#"+clients)
	}); err != nil {
		t.Fatal(err)
	}
}

// startEtcd starts a further etcd, and returns its URL.
func startEtcd(t *testing.T, cp *controlplane.ControlPlane, name string, args ...string) (url string) {
	t.Helper()
	binary, err := controlplane.Binary("etcd")
	if err != nil {
		t.Fatal(err)
	}
	clients, peers := "http://"+framework.FreeAddress(t), "http://"+framework.FreeAddress(t)
	cp.Run(t, name, binary, append(args, "--name="+name, "--data-dir="+t.TempDir(), "--log-level=warn",
		"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster="+name+"="+peers)...)
	return clients
}

// compact drops the old revisions of all objects.
func compact(ctx context.Context, etcd *clientv3.Client) error {
	latest, err := etcd.Get(ctx, "/", clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return err
	}
	_, err = etcd.Compact(ctx, latest.Header.Revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil // Nothing was written since the last time.
	}
	return err
}

// databaseSize is how large etcd's file is.
func (c *cluster) databaseSize(t *testing.T) (size int64) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		status, err := c.Etcd().Client().Status(ctx, c.Etcd().URL())
		if err == nil {
			size = status.DbSize
		}
		return err
	})
	return size
}
