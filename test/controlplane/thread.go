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
	"errors"
	"runtime"
)

// thread runs functions on one operating system thread that it never shares. Namespaces belong to threads, and so does
// the promise of the kernel to end a child with its parent: a child started here ends when this thread does, which is
// when end is called or the whole process dies.
type thread struct {
	work  chan func()
	leave chan struct{}
	ended chan struct{}
}

var errThreadEnded = errors.New("the host is gone")

func newThread() *thread {
	t := &thread{work: make(chan func()), leave: make(chan struct{}), ended: make(chan struct{})}
	go t.run()
	return t
}

func (t *thread) run() {
	runtime.LockOSThread()
	if onMainThread() {
		// The main thread cannot end before the process does, and others read its namespaces as those of the process. Hold it
		// while another goroutine looks for a thread, so that this one cannot be found twice.
		moved := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(moved)
			t.serve()
		}()
		<-moved
		runtime.UnlockOSThread()
		return
	}
	t.serve()
}

// serve returns with the thread still locked, which makes the runtime destroy the thread and its namespaces.
func (t *thread) serve() {
	defer close(t.ended)
	for {
		select {
		case f := <-t.work:
			f()
		case <-t.leave:
			return
		}
	}
}

// do runs f on the thread and waits for it.
func (t *thread) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case t.work <- func() { done <- f() }:
		return <-done
	case <-t.ended:
		return errThreadEnded
	}
}

// end must be called once.
func (t *thread) end() {
	close(t.leave)
	<-t.ended
}
