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
	"fmt"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// act performs the effects in their order, and adds to the decision what came of them. They do not depend on each
// other, so act continues after one fails. It repeats none, because each is for the object as it was read. The next
// sync reads and decides again.
func (c *Controller) act(ctx context.Context, d *decision) error {
	answering := true
	var errs []error
	for _, e := range d.effects {
		if ctx.Err() != nil {
			break
		}
		logger := klog.FromContext(ctx).WithValues("storageVersion", klog.KObj(e.object))
		began := c.clock.Now()
		err := c.perform(ctx, e)
		switch {
		case err == nil:
			d.memory.refusals = 0
			c.record(ctx, e)
		case controller.Refused(err): // This comes first: a webhook may deny with any status code, also 404 and 409.
			utilruntime.HandleErrorWithContext(ctx, err, "The API server refuses to change a storage version, will retry",
				"storageVersion", klog.KObj(e.object), "action", e.action)
			d.hold(refused)
		case apierrors.IsConflict(err):
			logger.V(4).Info("The storage version has changed; will decide again", "action", e.action)
			d.hold(conflict)
		case controller.SaysMissing(err, apiserverinternalv1alpha1.Resource("storageversions"), e.object.Name):
			logger.V(4).Info("The storage version is gone", "action", e.action)
		default:
			errs = append(errs, fmt.Errorf("%s of storage version %q: %w", e.action, e.object.Name, err))
			answering = false
		}
		// A write that is answered in time proves that the API server answers, as a read does. Without this, a long row of
		// writes would look like a gap between the reads.
		if now := c.clock.Now(); answering && now.Sub(began) <= readTimeout {
			d.memory.at = now
		} else {
			answering = false
		}
	}
	if d.heldBy.Has(refused) {
		d.next = min(recheckInterval<<min(d.memory.refusals, 10), maxRefusedRetry)
		d.memory = memory{refusals: d.memory.refusals + 1}
	}
	if d.next >= recheckInterval {
		d.memory.absentSince = nil // The next read comes too late to continue the row of these.
	}
	for why := range d.heldBy {
		syncsHeldBack.WithLabelValues(string(why)).Inc()
	}
	return errors.Join(errs...)
}

// perform sends the request of an effect. The uid and the resourceVersion of the object are its preconditions.
func (c *Controller) perform(ctx context.Context, e effect) error {
	client, object := c.client.InternalV1alpha1().StorageVersions(), e.written()
	if object == nil {
		return client.Delete(ctx, e.object.Name, controller.IfUnchanged(e.object))
	}
	_, err := client.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

func (c *Controller) record(ctx context.Context, e effect) {
	logger := klog.FromContext(ctx).WithValues("storageVersion", klog.KObj(e.object),
		"resourceVersion", e.object.ResourceVersion, "serverIDs", e.serverIDs, "reason", e.reason)
	switch e.action {
	case removeEntries:
		entriesRemoved.Add(float64(len(e.serverIDs)))
		logger.V(2).Info("Removed entries of servers whose lease is gone")
	case deleteObject:
		entriesRemoved.Add(float64(len(e.serverIDs)))
		objectsDeleted.WithLabelValues(string(e.reason)).Inc()
		logger.V(2).Info("Deleted a storage version without living servers")
	default:
		logger.V(4).Info("Changed a marker", "action", e.action)
	}
}
