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

package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func TestWhatAProcessUses(t *testing.T) {
	t.Parallel()
	thread := newThread()
	defer thread.end()
	h := &Host{name: "here", thread: thread, netns: -1}
	p, err := startProcess(
		h,
		Program{Name: "busy (very) busy", Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}},
		filepath.Join(t.TempDir(), "log"),
	)
	must(t, err)

	const enough = 50 * time.Millisecond
	var running Usage
	eventually(t, "it uses the processor", func(context.Context) error {
		if running, err = p.Usage(); err != nil || running.CPU < enough {
			return fmt.Errorf("it used %v: %w", running, err)
		}
		return nil
	})
	if running.Memory <= 0 || running.PeakMemory < running.Memory || running.PeakMemory > 100<<20 {
		t.Errorf("a shell has %d bytes in memory, and %d at most", running.Memory, running.PeakMemory)
	}
	if running.Received == 0 {
		t.Error("a shell read no bytes, although it reads its libraries")
	}
	must(t, p.Pause())
	paused, err := p.Usage()
	must(t, err)
	again, err := p.Usage()
	must(t, err)
	if paused != again || paused.CPU < running.CPU {
		t.Errorf("it used %v, then, paused, %v and %v", running, paused, again)
	}
	must(t, p.Resume())
	must(t, p.Stop())
	ended, err := p.Usage()
	must(t, err)
	// While it runs, times are whole ticks of two kinds.
	if ended.CPU < paused.CPU-2*clockTick || ended.Memory != 0 || ended.PeakMemory < paused.Memory {
		t.Errorf("it used %v, and when it had ended %v", paused, ended)
	}
}
