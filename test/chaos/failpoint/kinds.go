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

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/test/chaos/cluster"
	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// Changes that administrators make.
const (
	flipGears   = "flip gears"
	flipSprings = "flip springs"
	upgrade     = "upgrade or downgrade servers"
)

// DenyObjects is the only fault that makes servers refuse rewrites for good.
const DenyObjects = "deny objects"

// Faults of which a run of a migration notices nothing but that another manager is elected.
const (
	killManager     = "kill manager"
	pauseManager    = "pause manager"
	electionDropped = "drop election lease"
	electionStolen  = "steal election lease"
)

const (
	conversionAway = "conversion webhook away"
	validationAway = "validation webhook away"
	deleteState    = "delete a state"
)

// fault breaks something, and says what in f. It returns what mends it, which may be nil.
type fault func(ctx context.Context, r *Runner, dice uint64, f *model.Fault) (mend func() error, err error)

// kind is a fault and how long it lasts.
type kind struct {
	inject      fault
	least, most time.Duration
}

// Disturbs reports whether a fault or a change of a kind may keep a manager from seeing or storing something, or lose
// the answer to a request of it.
func Disturbs(kind string) bool {
	switch kind {
	case flipGears, flipSprings, DenyObjects, conversionAway, validationAway, deleteState:
		return false
	}
	return true
}

// Interrupts reports whether a fault of a kind may lose the answer to a request of a manager that stays the leader.
func Interrupts(kind string) bool {
	switch kind {
	case killManager, pauseManager, electionDropped, electionStolen:
		return false
	}
	return Disturbs(kind)
}

const (
	second = time.Second
	// compactWithin is how long it may take until every server has noticed a compaction.
	compactWithin = 20 * second
)

var kinds = map[string]kind{
	killManager:                 {killNode(managers), 0, 6 * second},
	"kill server":               {killNode(servers), 0, 6 * second},
	"kill etcd":                 {killNode(etcd), 0, 4 * second},
	pauseManager:                {pauseNode(managers), 2 * second, 12 * second},
	"pause server":              {pauseNode(servers), 2 * second, 10 * second},
	"pause etcd":                {pauseNode(etcd), second, 6 * second},
	"stutter of etcd":           {stutter, 4 * second, 10 * second},
	"cut manager":               {cutNode(managers), 4 * second, 14 * second},
	"cut server":                {cutNode(servers), 4 * second, 14 * second},
	"cut manager from a server": {cutBetween(managers, servers), 4 * second, 14 * second},
	"cut server from etcd":      {cutBetween(servers, etcd), 4 * second, 14 * second},
	"shift clock of manager":    {shiftClock(managers), 2 * second, 14 * second},
	"shift clock of server":     {shiftClock(servers), 2 * second, 14 * second},
	electionDropped:             {dropElection, 0, 3 * second},
	electionStolen:              {stealElection, 0, 3 * second},
	"drop identity lease":       {dropIdentity, 0, 3 * second},
	conversionAway:              {webhookAway(conversion), 3 * second, 10 * second},
	validationAway:              {webhookAway(validation), 3 * second, 10 * second},
	DenyObjects:                 {denyObjects, 20 * second, 32 * second},
	deleteState:                 {dropState, 0, 3 * second},
	"quota nearly full":         {fillQuota, 4 * second, 10 * second},
	"compaction of etcd":        {compact, 0, 3 * second},
	"restore of etcd":           {restore, 3 * second, 10 * second},
}

// Kinds are the names of all kinds of faults.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// choice chooses one of the nodes.
type choice func(c *cluster.Cluster) []*cluster.Node

func managers(c *cluster.Cluster) []*cluster.Node { return c.Managers }
func servers(c *cluster.Cluster) []*cluster.Node  { return c.APIs }
func etcd(c *cluster.Cluster) []*cluster.Node     { return []*cluster.Node{c.EtcdNode} }

func (of choice) pick(c *cluster.Cluster, dice uint64) *cluster.Node {
	nodes := of(c)
	return nodes[dice%uint64(len(nodes))]
}

func killNode(of choice) fault {
	return func(_ context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
		node := of.pick(r.cluster, dice)
		f.Target = node.Name
		release := node.Hold()
		return func() error {
			defer release()
			return node.Start()
		}, node.Kill()
	}
}

// pauseNode holds the node meanwhile: who restarts a process that sleeps waits for its end in vain.
func pauseNode(of choice) fault {
	return func(_ context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
		node := of.pick(r.cluster, dice)
		f.Target = node.Name
		release := node.Hold()
		return func() error {
			defer release()
			return ignoreEnded(node.Resume())
		}, ignoreEnded(node.Pause())
	}
}

// ignoreEnded drops the error of a signal to a process that has ended: the supervisor starts it again.
func ignoreEnded(err error) error {
	if errors.Is(err, controlplane.ErrNotRunning) {
		return nil
	}
	return err
}

// stutter stops etcd most of the time, in turns of a fraction of a second. To clients that is a slow disk.
func stutter(ctx context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
	node := r.cluster.EtcdNode
	stopped, stop := context.WithCancel(ctx)
	asleep, awake := time.Duration(60+dice%200)*time.Millisecond, 30*time.Millisecond
	f.Target = fmt.Sprintf("etcd sleeps %v of %v", asleep, asleep+awake)
	ended := make(chan error, 1)
	release := node.Hold()
	go func() {
		var errs []error
		for stopped.Err() == nil {
			errs = append(errs, node.Pause())
			sleep(stopped, asleep)
			errs = append(errs, node.Resume())
			sleep(stopped, awake)
		}
		ended <- ignoreEnded(errors.Join(errs...))
	}()
	return func() error {
		defer release()
		stop()
		return <-ended
	}, nil
}

func cutNode(of choice) fault {
	return func(_ context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
		node := of.pick(r.cluster, dice)
		f.Target = node.Name
		return node.Host.Heal, node.Host.Cut()
	}
}

func cutBetween(one, other choice) fault {
	return func(_ context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
		a, b := one.pick(r.cluster, dice), other.pick(r.cluster, dice>>8)
		f.Target = a.Name + " from " + b.Name
		return func() error { return a.Host.HealFrom(b.Host) }, a.Host.CutFrom(b.Host)
	}
}

// shiftClock sets the clock of a host, and sets it right in the end.
func shiftClock(of choice) fault {
	shifts := []time.Duration{
		-24 * time.Hour, -2 * time.Hour, -70 * second, -20 * second,
		20 * second, 70 * second, 2 * time.Hour, 24 * time.Hour,
	}
	return func(_ context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
		node := of.pick(r.cluster, dice)
		f.Shift = shifts[dice>>8%uint64(len(shifts))]
		f.Target = fmt.Sprintf("%s by %v", node.Name, f.Shift)
		return func() error { return ignoreEnded(node.SetClock(0)) }, ignoreEnded(node.SetClock(f.Shift))
	}
}

func dropElection(ctx context.Context, r *Runner, _ uint64, f *model.Fault) (func() error, error) {
	f.Target = cluster.ElectionLease
	return nil, r.cluster.DropLease(ctx, f.Target)
}

func stealElection(ctx context.Context, r *Runner, _ uint64, f *model.Fault) (func() error, error) {
	f.Target = cluster.ElectionLease
	return nil, r.cluster.StealLease(ctx)
}

func dropIdentity(ctx context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
	all := r.cluster.Servers()
	server := all[dice%uint64(len(all))]
	f.Target = server.Name()
	return nil, r.cluster.DropLease(ctx, server.Identity())
}

// dropState deletes a StorageState, which asks the manager to assume nothing about what is stored.
func dropState(ctx context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
	f.Target = model.Resources[dice%uint64(len(model.Resources))].GroupResource.String()
	return nil, r.cluster.DropState(ctx, f.Target)
}

func conversion(c *cluster.Cluster) *webhook.Hook { return c.Conversion }
func validation(c *cluster.Cluster) *webhook.Hook { return c.Validation }

// webhookAway makes a webhook fail, hang, or answer late.
func webhookAway(of func(*cluster.Cluster) *webhook.Hook) fault {
	return func(_ context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
		ways := []struct {
			name string
			webhook.Behaviour
		}{
			{"fails", webhook.Behaviour{Fail: true}},
			{"hangs", webhook.Behaviour{Hang: true}},
			{"is late", webhook.Behaviour{Delay: 2 * second}},
		}
		hook, way := of(r.cluster), ways[dice%uint64(len(ways))]
		f.Target = way.name
		hook.Behave(way.Behaviour)
		return func() error {
			hook.Behave(webhook.Behaviour{})
			return nil
		}, nil
	}
}

// Denial is what the validation webhook says of objects that it denies.
const Denial = "this spring is denied for now"

// denyObjects has the validation webhook deny changes of some springs, which have to be rewritten now.
func denyObjects(ctx context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
	const some = 5
	deny := map[string]metav1.Status{}
	for i := range some {
		name := model.Springs.Name(int(dice>>(8*i)) & 0xff % model.Springs.Names)
		deny[name] = metav1.Status{Message: Denial, Code: 403, Reason: metav1.StatusReasonForbidden}
	}
	f.Denied = slices.Sorted(maps.Keys(deny))
	f.Target = strings.Join(f.Denied, " ")
	r.cluster.Validation.Behave(webhook.Behaviour{Deny: deny})
	r.change(ctx, Step{Kind: flipSprings})
	return func() error {
		r.cluster.Validation.Behave(webhook.Behaviour{})
		return nil
	}, nil
}

// fillQuota leaves etcd so little space that writers raise its alarm.
func fillQuota(ctx context.Context, r *Runner, dice uint64, f *model.Fault) (func() error, error) {
	left := int64(dice%8) << 16
	f.Target = fmt.Sprintf("%d KiB are left", left>>10)
	return func() error { return r.cluster.SetQuota(ctx, 0) }, r.cluster.SetQuota(ctx, left+1)
}

// compact drops all revisions of before, so that continue tokens expire.
func compact(ctx context.Context, r *Runner, _ uint64, _ *model.Fault) (func() error, error) {
	ctx, cancel := context.WithTimeout(ctx, compactWithin)
	defer cancel()
	// The record must have them.
	if err := r.cluster.Sync(ctx); err != nil {
		return nil, err
	}
	var resources []schema.GroupVersionResource
	for _, resource := range []model.Resource{model.Gears, model.Springs} {
		resources = append(resources, resource.WithVersion(resource.Versions[0]))
	}
	return nil, r.cluster.ExpireContinueTokens(ctx, resources...)
}

// restore saves etcd, and puts that back in the end.
func restore(ctx context.Context, r *Runner, _ uint64, _ *model.Fault) (func() error, error) {
	r.backups++
	backup, err := r.cluster.Save(fmt.Sprintf("backup-%d", r.backups))
	return func() error {
		if err != nil {
			return nil
		}
		// An upgrade that is under way ends first, and no request may begin before and end after the restore.
		defer r.changing.Unlock()
		r.changing.Lock()
		defer r.traffic.Quiet()()
		return r.cluster.Restore(ctx, backup)
	}, err
}
