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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	quotaFlag = "--quota-backend-bytes="
	// wideQuota is more than any run stores.
	wideQuota = 8 << 30
)

// Backup is a copy of the data of etcd.
type Backup struct{ folder string }

// Save stops etcd, copies its data, and starts it again.
func (c *Cluster) Save(name string) (Backup, error) {
	defer c.EtcdNode.Hold()()
	backup := Backup{folder: filepath.Join(c.Dir(), name)}
	return backup, c.Etcd().Save(backup.folder)
}

// Restore kills the API servers, puts back a backup, and starts everything again.
func (c *Cluster) Restore(ctx context.Context, backup Backup) error {
	for _, node := range append([]*Node{c.EtcdNode}, c.APIs...) {
		defer node.Hold()()
	}
	for _, node := range c.APIs {
		if err := node.Kill(); err != nil {
			return err
		}
	}
	if err := c.recorder.sync(ctx); err != nil {
		return err
	}
	if err := c.recorder.stop(); err != nil {
		return err
	}
	if err := c.Etcd().Restore(backup.folder); err != nil {
		return err
	}
	// Nobody has written yet, because the API servers do not run.
	first, err := c.Etcd().Client().Get(ctx, markKey)
	if err != nil {
		return fmt.Errorf("reading the revision of the backup: %w", err)
	}
	c.History.BeginEra(first.Header.Revision)
	c.recorder = record(c.ctx, c.Etcd().Client(), c.History, first.Header.Revision)
	var errs []error
	for _, node := range c.APIs {
		errs = append(errs, node.Start())
	}
	return errors.Join(errs...)
}

// SetQuota starts etcd again with a quota that leaves so many bytes, or with a wide one if that is zero.
func (c *Cluster) SetQuota(ctx context.Context, left int64) error {
	defer c.EtcdNode.Hold()()
	quota := int64(wideQuota)
	if left > 0 {
		status, err := c.Etcd().Client().Status(ctx, c.Etcd().URL())
		if err != nil {
			return fmt.Errorf("reading the size of etcd: %w", err)
		}
		quota = status.DbSize + left
	}
	err := c.Etcd().Restart(func(e *controlplane.EtcdConfig) {
		e.ExtraArgs = []string{quotaFlag + strconv.FormatInt(quota, 10)}
	})
	if err != nil || left > 0 {
		return err
	}
	// The alarm stays when there is space again.
	if _, err = c.Etcd().Client().AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		return fmt.Errorf("ending the alarm of etcd: %w", err)
	}
	return nil
}

// Roll starts a server again, with the other release.
func (c *Cluster) Roll(i int) error {
	defer c.APIs[i].Hold()()
	c.mu.Lock()
	c.old[i] = !c.old[i]
	old := c.old[i]
	c.mu.Unlock()
	c.noteChange()
	err := c.Servers()[i].Restart(func(s *controlplane.Server) {
		s.EmulatedVersion = ""
		if old {
			s.EmulatedVersion = oldRelease
		}
	})
	c.noteChange()
	return err
}

// noteChange records that what servers write has changed, or is about to.
func (c *Cluster) noteChange() {
	c.History.AddRevision(model.Revision{
		Number: c.History.Last(), Seen: time.Now(), Change: &model.Change{Resource: model.Policies.Resource},
	})
}

// Storage is the version that servers write a resource in, for the end of a round: they do not differ then.
func (c *Cluster) Storage(resource model.Resource, world *model.World) string {
	if resource.Custom() {
		return world.Definitions[resource.Resource].Storage
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.old[0] {
		return resource.Versions[0]
	}
	return resource.Versions[len(resource.Versions)-1]
}
