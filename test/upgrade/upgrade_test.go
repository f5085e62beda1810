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

package upgrade

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// veryLong is enough for migrations of all resources with the default flags.
const veryLong = 15 * time.Minute

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// admissionSamples have no effect.
const admissionSamples = `
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: sample}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: sample}
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {name: sample}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [example.com], apiVersions: [v1], resources: [nothing], operations: [CREATE]}]
  reinvocationPolicy: Never
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{}"}}]
`

// TestUpgrade upgrades three servers of a cluster that has the static pods, beta APIs, an object of each kind, a custom
// resource, and writers at every server: one server at a time.
func TestUpgrade(t *testing.T) {
	framework.RunTogether(t, 6, []framework.Test{
		{Name: "from 1.34 to 1.37", Servers: 3, Run: func(t *testing.T) {
			testUpgrade(t, "1.34", step{to: "1.35"}, step{to: "1.36"}, step{to: "1.37"})
		}},
		{Name: "from 1.36 to 1.37, rolled back in the middle", Servers: 3, Run: func(t *testing.T) {
			testUpgrade(t, "1.36", step{to: "1.37", rollBack: true}, step{to: "1.37"})
		}},
	})
}

// step is the upgrade of all servers, or of all but one, which are rolled back then.
type step struct {
	to       string
	rollBack bool
}

// upgraded is a cluster while it is upgraded.
type upgraded struct {
	*judge
	pods       *staticPods
	kubeconfig string
}

func testUpgrade(t *testing.T, from string, steps ...step) {
	u := install(t, from)
	began, start := u.revision(t), time.Now()
	writers := startTraffic(t, u.cluster, true)
	u.start(t)
	u.pods = startStaticPods(t, u.cluster)
	u.await(t, from, 0)
	for n, s := range steps {
		before := u.revision(t)
		servers, end := u.Servers(), s.to
		if s.rollBack {
			servers, end = servers[1:], from
		}
		u.replace(t, servers, s.to)
		if n == 0 {
			u.StoreVersion(t, widgets, "v2")
		}
		if s.rollBack {
			slices.Reverse(servers)
			u.replace(t, servers, from)
		}
		u.await(t, end, before)
		from = end
	}
	u.createSamples(t) // of kinds that only the last release serves
	u.migrateAdmissionObjects(t)
	writers.stop()
	u.nothingFailed(t)
	u.replay(t, began, true)
	writers.lost(t.Context(), t, u.cluster)
	var end *ending
	framework.Eventually(t, soon, func(ctx context.Context) (err error) {
		end, err = u.everythingCurrent(ctx, t)
		return err
	})
	t.Logf("end: etcd has %d objects, and the servers listed all of them, in %d versions of resources; "+
		"no object of: %s; not served any more: %s", end.objects, end.versions, sorted(end.empty), sorted(end.unserved))
	t.Logf("managers: %d restarts, all because the leader could not renew its lease; the test took %v",
		u.pods.restarts.Load(), time.Since(start).Round(time.Second))
}

// install starts servers of a release, and does what the documents say of static pods.
func install(t *testing.T, release string) *upgraded {
	t.Helper()
	cfg := controlplane.Config{Hosts: true}
	for range 3 {
		cfg.Servers = append(cfg.Servers, controlplane.Server{
			Binary: binary(t, release), RuntimeConfig: []string{"api/beta=true"},
			ExtraArgs: []string{"--etcd-compaction-interval=0"}, // The judge reads the whole history.
		})
	}
	c := start(t, cfg)
	u := &upgraded{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := c.WriteKubeconfig(u.kubeconfig, c.AdminConfig); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartControllerManager("--controllers=clusterrole-aggregation-controller"); err != nil {
		t.Fatal(err)
	}
	u.kubectl(t, "", "apply", "-k", manifests+"/overlays/static-pod")
	definition := samples.Definition(widgets, "Widget", "v1", "v1", "v2")
	if _, err := c.Definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	u.kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	u.kubectl(t, u.svm(t, "rbac"), "apply", "-f", "-")
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := c.Dynamic.Resource(widgets.WithVersion("v1")).List(ctx, metav1.ListOptions{})
		return err
	})
	c.createSamples(t)
	u.judge = newJudge(t, c)
	return u
}

// createSamples creates an object of each kind that the servers serve, whatever the version.
func (c *cluster) createSamples(t *testing.T) {
	t.Helper()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Kube.Discovery()))
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(samples.Objects+admissionSamples), 4096)
	created := 0
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); err != nil {
			break
		}
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			mapping, err = mapper.RESTMapping(kind.GroupKind())
		}
		if err != nil {
			t.Logf("the servers do not serve %s", kind)
			continue
		}
		o.SetGroupVersionKind(mapping.GroupVersionKind)
		framework.Eventually(t, soon, func(ctx context.Context) error {
			_, err := c.Dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
			switch {
			case apierrors.IsAlreadyExists(err):
				return nil
			case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
				t.Logf("the servers refuse %s: %v", kind, err)
				return nil
			case err == nil:
				created++
			}
			return err
		})
	}
	t.Logf("samples: %d objects", created)
}

// replace replaces servers, one at a time. Those that are rolled back crash.
func (u *upgraded) replace(t *testing.T, servers []*controlplane.APIServer, name string) {
	t.Helper()
	for _, server := range servers {
		t.Logf("%s: %s becomes %s", time.Now().Format(time.TimeOnly), server.Name(), name)
		if err := server.Restart(func(s *controlplane.Server) { s.Binary = binary(t, name) }); err != nil {
			t.Fatal(err)
		}
		u.learn(t)
		framework.Eventually(t, soon, u.pods.ready)
		framework.Eventually(t, soon, u.covered)
	}
}

// await waits until everything is migrated that the static pod migrates.
func (u *upgraded) await(t *testing.T, release string, since int64) {
	t.Helper()
	began := time.Now()
	framework.Eventually(t, veryLong, func(ctx context.Context) error {
		return u.migratedBy(ctx, release, since, admissionGroup)
	})
	t.Logf("%s: everything is migrated by servers of %s, after %v", time.Now().Format(time.TimeOnly), release,
		time.Since(began).Round(time.Second))
}

// migrateAdmissionObjects does what the documents say of these, which the static pod leaves out.
func (u *upgraded) migrateAdmissionObjects(t *testing.T) {
	t.Helper()
	role := u.svm(t, "rbac", "--admission")
	u.kubectl(t, role, "apply", "-f", "-")
	t.Log(u.svm(t, "migrate", "*."+admissionGroup, "--wait"))
	u.kubectl(t, role, "delete", "-f", "-")
}

// kubectl runs kubectl as the administrator, with input, and returns what it wrote.
func (u *upgraded) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	path, err := controlplane.Binary("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	return u.run(t, path, input, args)
}

// svm runs the plugin.
func (u *upgraded) svm(t *testing.T, args ...string) string {
	t.Helper()
	return u.run(t, framework.Binary("kubectl-svm"), "", args)
}

func (u *upgraded) run(t *testing.T, path, input string, args []string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), path, append(args, "--kubeconfig="+u.kubeconfig)...)
	command.Env, command.Stdin = []string{"HOME=" + t.TempDir()}, strings.NewReader(input)
	var complaints strings.Builder
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", filepath.Base(path), args, err, out, &complaints)
	}
	return string(out)
}
