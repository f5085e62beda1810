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

package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	restclient "k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/definition"
)

// TestDefinitionDeletedUnderAController expects readiness to fail until the definition is back. An API server that does
// not answer is no proof.
func TestDefinitionDeletedUnderAController(t *testing.T) {
	const list = `{"kind": "APIResourceList", "apiVersion": "v1", "resources": [{"name": "storagestates"}]}`
	var status atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write([]byte(list))
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&restclient.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	h, fakeClock := newHealth(nil, nil), clocktesting.NewFakeClock(time.Now())
	need := Need{Wanted: definition.Wanted{Resource: definition.States.Resource}}
	d := ControllerDescriptor{Name: "a", Needs: []Need{need}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { h.watchNeeds(ctx, fakeClock, client, d); close(ended) }()
	for _, step := range []struct {
		status  int32
		missing bool
	}{{http.StatusOK, false}, {http.StatusForbidden, false}, {http.StatusNotFound, true}, {http.StatusOK, false}} {
		status.Store(step.status)
		err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
			func(context.Context) (bool, error) {
				if fakeClock.HasWaiters() {
					fakeClock.Step(needInterval)
				}
				_, missing := h.missing.Load(checkName(d, need))
				return missing == step.missing, nil
			})
		if err != nil {
			t.Errorf("the API server answers with %d, and readiness does not say %t", step.status, step.missing)
		}
	}
	cancel()
	<-ended
}
