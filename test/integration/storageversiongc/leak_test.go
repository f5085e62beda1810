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

package storageversiongc

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// leavesNothingBehind must run alone, so that all new goroutines are those of the controller.
func leavesNothingBehind(t *testing.T, cp *controlplane.ControlPlane) {
	client := newClient(t, cp.AdminConfig())
	mustPublish(t, client, "gc.example.com.stale", server{"gone", "gc.example.com/v1"})
	before := goleak.IgnoreCurrent()
	for _, failure := range []hook{nil, failures["no answer"]} {
		c := startCollector(t, cp.AdminConfig(), collectorOptions{hook: failure})
		framework.Eventually(t, soon, func(context.Context) error {
			if c.count("GET lease") < 2 {
				return errors.New("the controller is not at work")
			}
			return nil
		})
		c.stop()
	}
	// Connections are not the controller's: all clients of this process share them, and may have opened another one
	// meanwhile.
	connections, err := rest.TransportFor(cp.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(context.Context) error {
		utilnet.CloseIdleConnectionsFor(connections)
		return goleak.Find(before)
	})
}
