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
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// writes are the times at which objects were written, as etcd tells them.
type writes struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	times   []time.Time
	objects map[string]bool
}

// watch starts to watch the writes of widgets.
func (w *widgets) watch(ctx context.Context) *writes {
	ctx, cancel := context.WithCancel(ctx)
	seen := &writes{cancel: cancel, done: make(chan struct{}), objects: map[string]bool{}}
	events := w.cp.Etcd().Client().Watch(
		clientv3.WithRequireLeader(ctx), w.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
	)
	go func() {
		defer close(seen.done)
		for response := range events {
			seen.add(response.Events, time.Now())
		}
	}()
	return seen
}

func (w *writes) add(events []*clientv3.Event, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, event := range events {
		if key := string(event.Kv.Key); !strings.HasSuffix(key, "/"+probe) {
			w.times = append(w.times, at)
			w.objects[key] = true
		}
	}
}

// count is how many objects were written.
func (w *writes) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.objects)
}

// first is when the first object was written, zero if none was.
func (w *writes) first() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.times) == 0 {
		return time.Time{}
	}
	return w.times[0]
}

// end ends the watch, and returns the times of all writes.
func (w *writes) end() []time.Time {
	time.AfterFunc(poll, w.cancel) // the last events are still on their way
	<-w.done
	return w.times
}
