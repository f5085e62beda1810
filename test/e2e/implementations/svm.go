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

package implementations

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

// deleted is the reason of the outcome of a migration that no longer exists.
const deleted = "Deleted"

const (
	// customRole has the rules of all roles that allow the manager a resource.
	customRole       = "svm-controller-manager:custom"
	aggregatedWithin = 10 * time.Minute
	poll             = 500 * time.Millisecond
)

// SVM is svm-controller-manager, installed with its manifests.
type SVM struct{ migrationAPI }

// NewSVM makes an adapter to svm-controller-manager.
func NewSVM(config *rest.Config) (*SVM, error) {
	api, err := newMigrationAPI(config)
	if err != nil {
		return nil, err
	}
	return &SVM{api}, nil
}

// Name is the name of the program.
func (s *SVM) Name() string { return "svm-controller-manager" }

// Features are all.
func (s *SVM) Features() suite.Features {
	return suite.Features{
		suite.FeatureKnowledge, suite.FeatureTrigger, suite.FeatureDeniedObjects, suite.FeaturePruning,
		suite.FeatureProgress, suite.FeatureHistory, suite.FeatureGarbageCollection, suite.FeatureFence,
		suite.FeaturePrivacy,
	}
}

// Prepare allows the resource, as docs/install.md says, and waits until the rules are those of the manager.
func (s *SVM) Prepare(
	ctx context.Context, resource schema.GroupVersionResource,
) (undo func(ctx context.Context) error, err error) {
	about := []install.Resource{{GroupResource: resource.GroupResource(), HasStatus: true}}
	role := install.NewRole(about)
	if len(role.Rules) == 0 {
		role = install.NewAdmissionRole(about)
	}
	if len(role.Rules) == 0 {
		return nil, nil // The role of the manifests has it.
	}
	role.Name, role.GenerateName = "", "svm-conformance-"
	roles := s.kube.RbacV1().ClusterRoles()
	created, err := roles.Create(ctx, role, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("allowing %s: %w", resource, err)
	}
	undo = func(ctx context.Context) error {
		err := roles.Delete(ctx, created.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting a role: %w", err)
		}
		return nil
	}
	return undo, s.awaitRules(ctx, resource)
}

func (s *SVM) awaitRules(ctx context.Context, resource schema.GroupVersionResource) error {
	allows := func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.APIGroups, resource.Group) && slices.Contains(rule.Resources, resource.Resource)
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, poll, aggregatedWithin, true, func(ctx context.Context) (bool, error) {
		var role *rbacv1.ClusterRole
		role, last = s.kube.RbacV1().ClusterRoles().Get(ctx, customRole, metav1.GetOptions{})
		if apierrors.IsNotFound(last) || apierrors.IsForbidden(last) {
			return false, last // It does not help to wait.
		}
		return last == nil && slices.ContainsFunc(role.Rules, allows), nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the ClusterRole %s, which the manifests install, has the rules for %s: %w",
			customRole, resource, cmp.Or(last, err))
	}
	return nil
}

// deniedOf are the objects that a migration names.
func deniedOf(m *v1alpha1.StorageVersionMigration) map[types.NamespacedName]string {
	denied := map[types.NamespacedName]string{}
	for _, object := range m.Status.DeniedObjects {
		name := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
		denied[name] = strings.TrimSpace(string(object.Reason) + " " + object.Message)
	}
	return denied
}
