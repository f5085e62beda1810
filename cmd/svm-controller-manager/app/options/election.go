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

package options

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentbaseconfig "k8s.io/component-base/config"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
)

func (o *Options) validateElection() []error {
	election := o.Generic.LeaderElection
	if !election.LeaderElect {
		return nil
	}
	var errs []error
	lease, deadline := election.LeaseDuration.Duration, election.RenewDeadline.Duration
	period := election.RetryPeriod.Duration
	if election.ResourceName == "" || election.ResourceNamespace == "" {
		errs = append(errs, errors.New("--leader-elect-resource-name and --leader-elect-resource-namespace must not "+
			"be empty: without both there is no lease, and the process would stand by forever"))
	}
	for _, name := range []struct {
		flag, value string
		wrong       func(string) []string
	}{
		{"--leader-elect-resource-name", election.ResourceName, validation.IsDNS1123Subdomain},
		{"--leader-elect-resource-namespace", election.ResourceNamespace, validation.IsDNS1123Label},
	} {
		if why := name.wrong(name.value); name.value != "" && len(why) > 0 {
			errs = append(errs, fmt.Errorf("%s must be a valid name, got %q: %s", name.flag, name.value, why[0]))
		}
	}
	if election.ResourceLock != resourcelock.LeasesResourceLock { // The library does not name the flag.
		errs = append(errs, fmt.Errorf("--leader-elect-resource-lock must be %q, got %q",
			resourcelock.LeasesResourceLock, election.ResourceLock))
	}
	// The lease object holds whole seconds, and other candidates go by it.
	if lease.Truncate(time.Second) <= deadline {
		errs = append(errs, fmt.Errorf("--leader-elect-lease-duration (%v), in whole seconds, "+
			"must be longer than --leader-elect-renew-deadline (%v)", lease, deadline))
	}
	if period <= 0 || deadline <= 2*period {
		errs = append(errs, fmt.Errorf("--leader-elect-renew-deadline (%v) must be longer than twice "+
			"--leader-elect-retry-period (%v), which must be positive", deadline, period))
	}
	return errs
}

// WarnOfOtherLease logs what a lease of another name needs. Without it the elector only logs again and again that the
// lease is forbidden.
func WarnOfOtherLease(ctx context.Context, election componentbaseconfig.LeaderElectionConfiguration) {
	if !election.LeaderElect ||
		(election.ResourceName == names.Manager && election.ResourceNamespace == metav1.NamespaceSystem) {
		return
	}
	klog.FromContext(ctx).Info("The manifests allow this manager to lead with the default lease only. With another "+
		"--leader-elect-resource-name or --leader-elect-resource-namespace, change the roles, the fence and the FlowSchema "+
		"of the election. Without the permission it never leads",
		"lease", klog.KRef(election.ResourceNamespace, election.ResourceName),
		"default", klog.KRef(metav1.NamespaceSystem, names.Manager))
}
