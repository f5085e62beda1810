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

package contender

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// Writes are the times at which objects of a resource were written, as etcd tells them.
type Writes struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	times []time.Time
}

// WatchWrites starts to watch the writes of a resource.
func WatchWrites(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource) *Writes {
	ctx, cancel := context.WithCancel(ctx)
	w := &Writes{cancel: cancel, done: make(chan struct{})}
	prefix := filepath.Join("/registry", resource.Current.Group, resource.Current.Resource) + "/"
	client := cp.Etcd().Client()
	watch := client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	go func() {
		defer close(w.done)
		for response := range watch {
			now := time.Now()
			w.mu.Lock()
			for _, event := range response.Events {
				if !strings.HasSuffix(string(event.Kv.Key), "/"+custom.Probe) {
					w.times = append(w.times, now)
				}
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// First is when the first object was written, zero if none was.
func (w *Writes) First() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.times) == 0 {
		return time.Time{}
	}
	return w.times[0]
}

// End ends the watch and returns the times of all writes.
func (w *Writes) End() []time.Time {
	time.AfterFunc(poll, w.cancel) // the last events are still on their way
	<-w.done
	return w.times
}
