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

// Scale measures what the manager and the kubectl plugin need in a large cluster: time, memory, processor time and
// requests.
//
//	go run ./test/scale                              2,000 definitions, 5,000 states, 100,000 objects of one resource
//	go run ./test/scale -synthetic=1000000           the migrator alone, with an API server that makes its objects up
//
// The cluster is etcd and one API server on this machine, with the manifests of the static pod. The manager has the
// flags of that pod, but a shorter settle period. Objects are put into etcd directly, which takes seconds. Each phase
// prints a line as soon as it has ended.
//
// Build first: make build controlplane, hack/build-controlplane.sh kubectl kube-controller-manager.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/test/scale/synthetic"
)

type options struct {
	objects, definitions, states, synthetic int
	dir, serve                              string
	idle, patience                          time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.objects, "objects", 100_000, "how many objects one of the custom resources has")
	flag.IntVar(&o.definitions, "definitions", 2000, "how many CustomResourceDefinitions there are")
	flag.IntVar(&o.states, "states", 5000, "how many StorageStates there are; those that nobody serves fill up")
	flag.DurationVar(&o.idle, "idle", 10*time.Minute, "how long the manager is watched while nothing happens")
	flag.DurationVar(&o.patience, "patience", 2*time.Hour, "after that a phase ends, and says how many resources are left")
	flag.IntVar(&o.synthetic, "synthetic", 0, "measure the migrator alone, with so many objects that are made up")
	flag.StringVar(&o.dir, "dir", "", "a folder to keep data and logs in")
	flag.StringVar(&o.serve, "serve", "", "internal: be the API server that makes objects up, at that address")
	flag.Parse()
	klog.LogToStderr(false) // of requests that end with a phase
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	do := measure
	switch {
	case o.serve != "":
		do = func(ctx context.Context, o options) error { return synthetic.Serve(ctx, o.serve, o.synthetic) }
	case o.synthetic > 0:
		do = measureSynthetic
	}
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// measureSynthetic prints the memory of this process while it migrates. The server is another process.
func measureSynthetic(ctx context.Context, o options) error {
	const address, lines = "127.0.0.1:18443", 10
	server := exec.CommandContext(ctx, os.Args[0], "-serve="+address, fmt.Sprintf("-synthetic=%d", o.synthetic))
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	defer func() { _, _ = server.Process.Kill(), server.Wait() }()
	fmt.Println("| objects | time | memory of the process | most so far |")
	fmt.Println("| ---: | ---: | ---: | ---: |")
	began, said := time.Now(), int64(0)
	counts, err := synthetic.Migrate(ctx, "http://"+address, func(done int64) {
		if tenth := int64(o.synthetic / lines); done/tenth > said {
			said = done / tenth
			now, most := memory()
			fmt.Printf("| %d | %v | %s | %s |\n", done, time.Since(began).Round(time.Second), megabytes(now), megabytes(most))
		}
	})
	fmt.Printf("\noutcomes: %+v, after %v\n", counts, time.Since(began).Round(time.Second))
	return err
}

// memory is what this process has now, and the most that it had, in bytes.
func memory() (now, most int64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	return field(status, "VmRSS"), field(status, "VmHWM")
}
