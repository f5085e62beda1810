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

package manager

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app"
)

// TestNoGoroutineIsLeft runs the manager inside of this process, through a life as a leader, and looks at what is left.
func TestNoGoroutineIsLeft(t *testing.T) {
	cp := storageVersionControlPlane(t)
	c := client(t, cp.AdminConfig())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, cp.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := app.NewControllerManagerCommand()
	cmd.SetArgs([]string{"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", freePort(t))})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	eventually(t, 30*time.Second, "the manager leads", func() bool { return holder(t.Context(), c, managerLease) != "" })

	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the manager does not end")
	}
	if h := holder(t.Context(), c, managerLease); h != "" {
		t.Errorf("the lease is still held by %q", h)
	}
	if err := goleak.Find(before,
		// The libraries keep these for the life of a process: the flusher of the log, and connections for the next request.
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
	); err != nil {
		t.Error(err)
	}
}
