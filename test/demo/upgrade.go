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
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// oldRelease is what the API servers emulate before they are upgraded. The storage version of policies differs from
// that of the release which they are.
const oldRelease = "1.36"

var (
	policies       = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}
	policyBindings = schema.GroupResource{Group: policies.Group, Resource: "mutatingadmissionpolicybindings"}
)

// showUpgrade upgrades the API servers, one after the other.
func (d *demo) showUpgrade(ctx context.Context) error {
	d.out.step("The control plane is upgraded, one server after the other")
	d.out.explain("So far the servers emulated Kubernetes %s, which stores MutatingAdmissionPolicies as v1beta1. The "+
		"next release stores them as v1. Until all servers have it, an object may be stored as either.", oldRelease)
	servers := d.cp.Servers()
	for i, server := range servers {
		err := server.Restart(func(s *controlplane.Server) { s.EmulatedVersion = "" })
		if err != nil {
			return fmt.Errorf("upgrading %s: %w", server.Host(), err)
		}
		d.out.saw("%s is upgraded", server.Host())
		if i > 0 || len(servers) == 1 {
			continue
		}
		err = d.untilStateOf(ctx, policies, "servers disagree", func(state *migrationv1alpha1.StorageState) bool {
			agreed := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateAgreed)
			return agreed != nil && agreed.Reason == migrationv1alpha1.StateReasonServersDisagree
		})
		if err != nil {
			return err
		}
		if err := d.kubectl(ctx, []string{"svm", "status", policies.String()}, notSafe); err != nil {
			return err
		}
		d.out.explain("As long as the servers disagree, nothing is migrated: an object would be written back in the old " +
			"encoding.")
	}
	stable := policies.Group + "/v1"
	err := d.untilStateOf(ctx, policies, "all are stored as v1", func(state *migrationv1alpha1.StorageState) bool {
		return state.Status.CurrentEncodingVersion == stable &&
			holds(state, migrationv1alpha1.StorageStateSafeToRemoveOldVersions)
	})
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, []string{"svm", "status", policies.String()}); err != nil {
		return err
	}
	stored, err := d.cp.Stored(ctx, policies)
	if err != nil {
		return err
	}
	for encoding, count := range countOf(stored) {
		d.out.saw("etcd has %d in %s", count, encoding)
	}
	return nil
}
