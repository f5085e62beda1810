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

package install

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// everything is an API server that serves all its APIs.
var everything = controlplane.StorageVersionAPI(controlplane.Server{RuntimeConfig: []string{"api/all=true"}})

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// TestManager runs the manager with the flags, the identity and the permissions of the manifests: first to observe
// only, then to migrate everything.
func TestManager(t *testing.T) {
	t.Parallel()
	c := startCluster(t, withQuotas(t, everything))
	_, err := c.StartControllerManager("--controllers=clusterrole-aggregation-controller,resourcequota-controller")
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, "observe-only")
	c.createObjects(t)
	if !t.Run("observe-only", func(t *testing.T) { testObserveOnly(t, c) }) {
		return
	}
	c.apply(t, "default")
	c.checkPod(t)
	c.replaceOld(t)
	role := install.NewRole(install.Resources(c.documents(t)))
	if _, err := c.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Run("default", func(t *testing.T) { testDefault(t, c) })
}

func testDefault(t *testing.T, c *cluster) {
	c.awaitRules(t)
	c.applyAgain(t)
	var before [][]controlplane.StoredObject
	unchanged := []schema.GroupResource{widgets, {Group: "apps", Resource: "deployments"}, {Resource: "secrets"}}
	for _, resource := range unchanged {
		before = append(before, c.stored(t, resource))
	}
	c.createGarbage(t)
	config := c.accountConfig(t, account)
	c.awaitFence(t, config)
	process, port := c.startManager(t, "manager", config,
		append(deploymentArgs(t, "default"), "--finished-migration-ttl=30s")...)
	c.awaitPages(t, port)
	if plan := c.plan(t); strings.Contains(plan, observesOnly) {
		t.Errorf("the plan tells that nobody migrates:\n%s", plan)
	}
	framework.Eventually(t, soon, c.everythingMigrated)
	framework.Eventually(t, soon, c.noGarbage)
	c.checkPriority(t, config)
	t.Run("one-shot", func(t *testing.T) { testOneShot(t, c) })
	for i, resource := range unchanged {
		changes := controlplane.CompareStored(before[i], c.stored(t, resource))
		if err := changes.OnlyEncodings(); err != nil {
			t.Errorf("%s: %v", resource, err)
		}
	}
	definition, err := c.Definitions().Get(t.Context(), widgets.String(), metav1.GetOptions{})
	if err != nil || !slices.Equal(definition.Status.StoredVersions, []string{"v2"}) {
		t.Errorf("status.storedVersions is %q, %v", definition.Status.StoredVersions, err)
	}
	if err := c.Definitions().Delete(t.Context(), widgets.String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := c.States().Get(ctx, widgets.String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("getting the state of a definition that is gone: %w", err)
	})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		list, err := c.Migrations().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 10 {
			err = fmt.Errorf("%d migrations are left", len(list.Items))
		}
		return err
	})
	framework.StopManager(t, process)
	c.checkPermissionsUsed(t)
}

// apply applies an overlay as a user would. No controller runs the Deployment.
func (c *cluster) apply(t *testing.T, overlay string) {
	t.Helper()
	c.kubectl(t, "", "apply", "-k", manifests+"/overlays/"+overlay)
	c.kubectl(t, "", "wait", "--for=condition=Established", "--timeout=10m", "crd",
		"storagestates.migration.k8s.io", "storageversionmigrations.migration.k8s.io")
}

// replaceOld applies the overlay that stops kube-storage-version-migrator.
func (c *cluster) replaceOld(t *testing.T) {
	t.Helper()
	sample, err := c.Kube.AppsV1().Deployments("default").Get(t.Context(), "sample", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deployments := c.Kube.AppsV1().Deployments("kube-system")
	for _, name := range []string{"migrator", "trigger"} {
		old := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: sample.Spec}
		if _, err := deployments.Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.kubectl(t, "", "apply", "--server-side", "--force-conflicts",
		"-k", manifests+"/overlays/replace-kube-storage-version-migrator")
	for _, name := range []string{"migrator", "trigger"} {
		live, err := deployments.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || live.Spec.Replicas == nil || *live.Spec.Replicas != 0 {
			t.Errorf("%s still has replicas, %v", name, err)
		}
	}
}

// createObjects creates one object of each kind, and custom resources that are stored in an old version.
func (c *cluster) createObjects(t *testing.T) {
	t.Helper()
	definition := samples.Definition(widgets, "Widget", "v1", "v1", "v2")
	for i := range definition.Spec.Versions {
		definition.Spec.Versions[i].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		}
	}
	if _, err := c.Definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitListed(t, "example.com/v1", "widgets", "widgets/status")
	c.awaitListed(t, v1alpha1.SchemeGroupVersion.String(), "storagestates", "storageversionmigrations")
	c.kubectl(t, samples.Objects, "create", "--validate=false", "-f", "-")
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "sample"},
	}}
	framework.Create(t, soon, c.Dynamic.Resource(widgets.WithVersion("v1")).Namespace("default"), widget)
	c.StoreVersion(t, widgets, "v2")
}

// awaitListed waits until discovery lists resources, which is later than their definitions are Established.
func (c *cluster) awaitListed(t *testing.T, version string, resources ...string) {
	t.Helper()
	framework.Eventually(t, soon, func(context.Context) error {
		listed := map[string]bool{}
		for _, document := range c.documents(t) {
			for _, resource := range document.APIResources {
				listed[resource.Name] = listed[resource.Name] || document.GroupVersion == version
			}
		}
		for _, resource := range resources {
			if !listed[resource] {
				return fmt.Errorf("discovery does not list %s of %s", resource, version)
			}
		}
		return nil
	})
}

// accountConfig is for clients that are the ServiceAccount of the Deployment.
func (c *cluster) accountConfig(t *testing.T, account string) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)},
	}
	token, err := c.Kube.CoreV1().ServiceAccounts(namespace).
		CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.AdminConfig)
	config.BearerToken = token.Status.Token
	return config
}

func deploymentArgs(t *testing.T, overlay string) []string {
	t.Helper()
	deployment := find[appsv1.Deployment](t, render(t, "overlays/"+overlay), "Deployment", namespace, account)
	return deployment.Spec.Template.Spec.Containers[0].Args
}

// migratedReason returns an error unless the state of the resource says for that reason that it is not migrated.
func (c *cluster) migratedReason(ctx context.Context, resource schema.GroupResource, reason string) error {
	state, err := c.States().Get(ctx, resource.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	condition := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateMigrated)
	if condition == nil || condition.Reason != reason {
		return fmt.Errorf("the condition of %s is %+v", resource, condition)
	}
	return nil
}

// everythingMigrated returns an error while a resource is not migrated that is to be.
func (c *cluster) everythingMigrated(ctx context.Context) error {
	states, err := c.States().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(states.Items) < 60 {
		return fmt.Errorf("there are only %d states", len(states.Items))
	}
	for _, state := range states.Items {
		condition := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateMigrated)
		left := state.Spec.Resource.Resource == "events" || state.Spec.Resource.Group == admissionGroup
		if !left && (condition == nil || condition.Status != metav1.ConditionTrue) {
			return fmt.Errorf("%s: %+v", state.Name, condition)
		}
	}
	return nil
}

// createGarbage creates what two API servers have left that are gone.
func (c *cluster) createGarbage(t *testing.T) {
	t.Helper()
	const gone = `{"apiServerID": "apiserver-gone",
		"encodingVersion": "v1", "decodableVersions": ["v1"], "servedVersions": ["v1"]}`
	c.kubectl(t, "{apiVersion: internal.apiserver.k8s.io/v1alpha1, kind: StorageVersion, metadata: {name: test.garbage},"+
		" spec: {}}", "create", "-f", "-")
	for name, patch := range map[string]string{
		"test.garbage":  `{"status": {"commonEncodingVersion": "v1", "storageVersions": [` + gone + `]}}`,
		"core.services": `[{"op": "add", "path": "/status/storageVersions/-", "value": ` + gone + `}]`,
	} {
		kind := "merge"
		if strings.HasPrefix(patch, "[") {
			kind = "json"
		}
		c.kubectl(t, "", "patch", "storageversion", name, "--subresource=status", "--type="+kind, "-p", patch)
	}
}

func (c *cluster) noGarbage(ctx context.Context) error {
	list, err := c.Kube.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, object := range list.Items {
		for _, entry := range object.Status.StorageVersions {
			if entry.APIServerID == "apiserver-gone" {
				return fmt.Errorf("%s has an entry of a server that is gone", object.Name)
			}
		}
	}
	return nil
}

// awaitRules waits until the rules for custom resources are in the manager's role.
func (c *cluster) awaitRules(t *testing.T) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		role, err := c.Kube.RbacV1().ClusterRoles().Get(ctx, "svm-controller-manager:custom", metav1.GetOptions{})
		if err != nil {
			return err
		}
		about := func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.APIGroups, widgets.Group) }
		if !slices.ContainsFunc(role.Rules, about) {
			return fmt.Errorf("the rules are %v", role.Rules)
		}
		return nil
	})
}

// applyAgain wants the manager to keep its permissions when somebody applies the manifests again.
func (c *cluster) applyAgain(t *testing.T) {
	t.Helper()
	c.apply(t, "default") // The overlay that was applied on the server before had another owner.
	c.awaitRules(t)
	role := func() string {
		return c.kubectl(t, "", "get", "clusterrole", "svm-controller-manager:custom",
			"-o", "jsonpath={.metadata.resourceVersion}")
	}
	// The controller that collects the rules may write once more. Manifests that drop them do so each time.
	framework.Eventually(t, soon, func(context.Context) error {
		before := role()
		c.apply(t, "default")
		if after := role(); after != before {
			return fmt.Errorf("applying the same manifests again changes the collected rules: revision %s, then %s",
				before, after)
		}
		return nil
	})
}

// awaitPages waits until the secure port knows clients of the cluster by certificate and by token.
func (c *cluster) awaitPages(t *testing.T, port int) {
	t.Helper()
	for _, config := range []*rest.Config{c.AdminConfig, c.accountConfig(t, account)} {
		client := c.page(t, config, port)
		framework.Eventually(t, soon, func(ctx context.Context) error {
			return client.Get().AbsPath("/metrics").Do(ctx).Error()
		})
	}
}

// page is a client for the secure port of a manager, which has a certificate of its own making.
func (c *cluster) page(t *testing.T, config *rest.Config, port int) rest.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Host, config.CAData, config.Insecure = fmt.Sprintf("https://127.0.0.1:%d", port), nil, true
	config.GroupVersion, config.NegotiatedSerializer = &schema.GroupVersion{}, scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eachRequest visits the requests that the ServiceAccount sent. None may have been forbidden.
func (c *cluster) eachRequest(t *testing.T, since time.Time, visit func(event *auditv1.Event)) {
	t.Helper()
	_, err := c.Requests(controlplane.RequestFilter{
		Users: []string{serviceAccount}, Since: since,
		Match: func(event *auditv1.Event) bool {
			if event.ResponseStatus != nil && event.ResponseStatus.Code == 403 {
				t.Errorf("forbidden: %s %s by %s", event.Verb, event.RequestURI, event.UserAgent)
			}
			visit(event)
			return false
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) stored(t *testing.T, resource schema.GroupResource) []controlplane.StoredObject {
	t.Helper()
	objects, err := c.Stored(t.Context(), resource)
	if err != nil || len(objects) == 0 {
		t.Fatalf("%d objects of %s are stored, %v", len(objects), resource, err)
	}
	return objects
}
