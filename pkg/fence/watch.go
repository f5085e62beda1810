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

package fence

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
)

const (
	// period is how often the fence is checked while it stands.
	period = time.Hour
	// firstRetry is the time to the next check if the fence does not stand. It doubles each further time, up to
	// longestRetry. API servers take a moment to follow a policy that was installed together with the manager.
	firstRetry   = time.Minute
	longestRetry = 5 * time.Minute
	checkTimeout = 15 * time.Second

	// labelPatch is a label for the namespace kube-system, which every cluster has.
	labelPatch = `{"metadata":{"labels":{"` + Label + `":"dry-run"}}}`
)

var (
	stateGauge = controller.NewGaugeDesc("svm_controller_manager", "fence",
		"1 with the state of the ValidatingAdmissionPolicy that keeps the manager from changing objects: Standing, Missing "+
			"or Unknown. Only the leader checks.", "state")
	gauges = controller.NewGauges(collect, stateGauge)
	// register adds the metric to the legacy registry, once.
	register = sync.OnceFunc(func() { legacyregistry.CustomMustRegister(gauges) })
)

// Watch checks again and again whether the fence stands.
type Watch struct {
	clock clock.Clock
	state atomic.Value // a State
}

// NewWatch returns a Watch that knows nothing yet.
func NewWatch(clk clock.Clock) *Watch {
	register()
	w := &Watch{clock: clk}
	w.state.Store(Unknown)
	return w
}

// State returns what the last check has found.
func (w *Watch) State() State { return w.state.Load().(State) }

// Run checks until ctx ends, as the user of the client. It logs what the first check finds, and each change.
func (w *Watch) Run(ctx context.Context, client kubernetes.Interface) {
	gauges.Show(w)
	defer gauges.Hide(w)
	logger, retryAfter := klog.FromContext(ctx), firstRetry
	var reported State
	for {
		state, err := check(ctx, client)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && retry.IsUnanswered(err) && !controller.Refused(err) && reported != "":
			// What was true before is most likely still true. If a webhook failed instead, the change may have passed the
			// fence before.
			logger.V(2).Info("Could not check whether the fence stands, will retry", "retryAfter", retryAfter, "err", err)
		case state != reported:
			w.state.Store(state)
			report(logger, state, err)
			reported = state
		}
		pause := period
		if state == Standing {
			retryAfter = firstRetry
		} else {
			pause, retryAfter = retryAfter, min(2*retryAfter, longestRetry)
		}
		if !retry.Sleep(ctx, w.clock, pause) {
			return
		}
	}
}

func report(logger klog.Logger, state State, err error) {
	switch state {
	case Standing:
		logger.Info("The fence stands: the API server refuses to let this manager change objects", "policy", Policy)
	case Missing:
		logger.Info("The fence is missing: the API server would let this manager change objects. "+
			"Apply the overlay or the Helm release of your installation again, and check that the policy names the user "+
			"of this manager", "policy", Policy)
	default:
		logger.Info("It is not known whether the fence stands. The manager needs the permission to patch namespaces, and "+
			"the API server must allow a dry run of a new label on kube-system", "policy", Policy, "err", err)
	}
}

// check sends the change. The error says why the state is Unknown.
func check(ctx context.Context, client kubernetes.Interface) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	_, err := client.CoreV1().Namespaces().Patch(ctx, metav1.NamespaceSystem, types.MergePatchType, []byte(labelPatch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return Missing, nil
	case Denies(err.Error()):
		return Standing, nil
	default:
		return Unknown, fmt.Errorf("trying to change a namespace: %w", err)
	}
}

func collect(w *Watch, gauge controller.Gauge) { gauge(stateGauge, 1, string(w.State())) }
