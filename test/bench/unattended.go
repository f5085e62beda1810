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
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	typed "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// definitions is how many other custom resources there are, without objects.
	definitions = 100
	// stillFor is how long no migration may begin or end until nothing happens. It is more than the settle period of the
	// manager.
	stillFor = 100 * time.Second
	eventTTL = "30s"
	// settlingWithin is how long a contender may take for all resources when it starts.
	settlingWithin = 20 * time.Minute
)

// unattended lets a contender find out by itself what is to be migrated: it counts its requests while nothing happens,
// and measures how long it takes to notice that a storage version changed.
func (b *bench) unattended(ctx context.Context, w *widgets, name string) (f figures, err error) {
	for i := range definitions {
		if err := w.define(ctx, fmt.Sprintf("others%d", i), fmt.Sprintf("Other%d", i)); err != nil {
			return nil, err
		}
	}
	c, err := b.newUnattended(w, name)
	if err != nil {
		return nil, err
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.kill()) }()
	client, err := versioned.NewForConfig(w.cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	api := client.MigrationV1alpha1()
	if err := awaitStill(ctx, api); err != nil {
		return nil, fmt.Errorf("waiting until nothing happens: %w", err)
	}
	began := time.Now()
	time.Sleep(b.idle)
	filter := controlplane.RequestFilter{Since: began, Until: time.Now(), Users: []string{c.user}}
	counts, err := w.cp.Requests(filter)
	if err != nil {
		return nil, err
	}
	f = figures{}
	f.put(hourly, float64(counts.Total())*time.Hour.Seconds()/b.idle.Seconds())
	if name == inTree { // nothing of it starts migrations
		return f, nil
	}
	return f, w.notice(ctx, api, f)
}

func (b *bench) newUnattended(w *widgets, name string) (*contender, error) {
	if name == inTree {
		return newInTree(w, nil), nil
	}
	programs, err := b.programs(w.cp, name, true)
	if err != nil {
		return nil, err
	}
	return newExternal(w, programs), nil
}

// awaitStill returns when no migration has begun or ended for a while.
func awaitStill(ctx context.Context, api typed.MigrationV1alpha1Interface) error {
	seen, since := "", time.Now()
	return wait.PollUntilContextTimeout(ctx, time.Second, settlingWithin, true, func(ctx context.Context) (bool, error) {
		states, err := api.StorageStates().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		migrations, err := api.StorageVersionMigrations().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		unfinished := 0
		for i := range migrations.Items {
			outcome, _, err := outcomeOf(migrations.Items[i].Status)
			if err != nil {
				return false, err
			}
			if outcome == "" {
				unfinished++
			}
		}
		if now := fmt.Sprint(len(states.Items), len(migrations.Items), unfinished); now != seen {
			seen, since = now, time.Now()
		}
		return time.Since(since) > stillFor, nil
	})
}

// notice changes the storage version, and measures when the contender lists the new one, when it begins to rewrite, and
// when it lists nothing else.
func (w *widgets) notice(ctx context.Context, api typed.MigrationV1alpha1Interface, f figures) error {
	writes := w.watch(ctx)
	defer writes.end()
	changed, err := w.flip(ctx)
	if err != nil {
		return err
	}
	hash := discovery.StorageVersionHash(group, w.current.Version, kind)
	err = wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		state, err := api.StorageStates().Get(ctx, w.current.GroupResource().String(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		since, listed := time.Since(changed).Seconds(), state.Status.PersistedStorageVersionHashes
		if _, before := f[noticed.key]; !before && slices.Contains(listed, hash) {
			f.put(noticed, since)
		}
		done := slices.Equal(listed, []string{hash})
		if done {
			f.put(finished, since)
		}
		return done, nil
	})
	if first := writes.first(); !first.IsZero() {
		f.put(detected, first.Sub(changed).Seconds())
	}
	return err
}
