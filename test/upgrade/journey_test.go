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
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// long is enough for migrations of all resources on a busy machine.
const long = 5 * time.Minute

// TestJourneys takes servers of Kubernetes 1.34 to later releases, one server at a time, and back by one release. In
// each leg of a journey the servers of each release replace those before them. A manager runs all the time, or only
// between the legs; then etcd has forgotten which servers lived. Everything is migrated at the end of each leg.
func TestJourneys(t *testing.T) {
	rollBack := [][]string{{"1.35"}, {"1.34"}}
	whole := slices.Concat(rollBack, [][]string{{"1.35"}, {"1.36", "1.35"}, {"1.36"}, {"1.37"}})
	var tests []framework.Test
	for name, j := range map[string]journey{
		"three servers":                    {servers: 3, legs: whole},
		"three servers behind one address": {servers: 3, legs: rollBack, oneAddress: true},
		"one server":                       {servers: 1, legs: whole},
	} {
		j.watched = true
		tests = append(tests, framework.Test{Name: name + ", a manager runs", Servers: j.servers, Run: j.run})
		j.watched = false
		tests = append(tests, framework.Test{Name: name + ", no manager runs", Servers: j.servers, Run: j.run})
	}
	slices.SortFunc(tests, func(a, b framework.Test) int { return strings.Compare(b.Name, a.Name) })
	framework.RunTogether(t, 6, tests)
}

type journey struct {
	servers    int64
	legs       [][]string // the names of releases
	oneAddress bool
	watched    bool
}

func (j journey) run(t *testing.T) {
	cfg := controlplane.Config{Hosts: true, AdvertiseBalancer: j.oneAddress}
	for range j.servers {
		cfg.Servers = append(cfg.Servers, controlplane.Server{
			Binary: binary(t, "1.34"), AllowAll: true, RuntimeConfig: []string{"api/all=true"},
			ExtraArgs: []string{"--etcd-compaction-interval=0"}, // The judge reads the whole history.
		})
	}
	c := start(t, cfg)
	c.InstallMigrationAPI(t)
	c.writeThrough(t, "1.34", c.Servers()...)
	manager := c.startManager(t, "manager-1.34")
	framework.Eventually(t, long, func(ctx context.Context) error { return c.migratedBy(ctx, "1.34", 0) })
	jury := newJudge(t, c)
	if j.watched {
		jury.start(t)
	}
	from := "1.34"
	for n, leg := range j.legs {
		t.Logf("%s: leg %v begins", time.Now().Format(time.TimeOnly), leg)
		if !j.watched {
			framework.StopManager(t, manager)
		}
		began := c.revision(t)
		for _, to := range leg {
			j.replace(t, jury, to, to < from)
			from = to
		}
		if !j.watched {
			began = c.forget(t)
			manager = c.startManager(t, fmt.Sprintf("manager-%d-%s", n, from))
		}
		framework.Eventually(t, long, func(ctx context.Context) error { return c.migratedBy(ctx, from, began) })
		jury.replay(t, began, j.watched)
	}
	c.nothingFailed(t)
	if !j.watched {
		t.Log(jury.report())
	}
}

// replace replaces the servers, one at a time, by those of a release. After each, objects are written through it and
// through the next one, which may be of the release before. A manager that runs records what they are stored in.
// Servers that crash give up neither their addresses nor their Leases; those that are rolled back do so.
func (j journey) replace(t *testing.T, c *judge, name string, crash bool) {
	t.Helper()
	for i, server := range c.Servers() {
		if crash {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := server.Restart(func(s *controlplane.Server) { s.Binary = binary(t, name) }); err != nil {
			t.Fatal(err)
		}
		c.writeThrough(t, name, server)
		c.write(t, c.Servers()[(i+1)%len(c.Servers())])
		c.learn(t)
		if j.watched {
			framework.Eventually(t, soon, c.covered)
		}
	}
}

// writeThrough creates objects through servers of a release, and finds them stored as that release stores them.
func (c *cluster) writeThrough(t *testing.T, name string, servers ...*controlplane.APIServer) {
	t.Helper()
	for _, server := range servers {
		object := c.write(t, server)
		written := map[schema.GroupResource]string{bindings: releases[name].bindings, classes: releases[name].classes}
		for r, version := range written {
			stored, err := c.StoredUnder(t.Context(), registry+r.Resource+"/"+object, 0)
			if err != nil || len(stored) != 1 || stored[0].Encoding != r.Group+"/"+version {
				t.Fatalf("a server of %s stores %s as %+v (%v), want %s", name, r, stored, err, version)
			}
		}
	}
}

// write creates a binding and a class through a server, and returns their name.
func (c *cluster) write(t *testing.T, server *controlplane.APIServer) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(server.Config("writer", framework.Masters))
	if err != nil {
		t.Fatal(err)
	}
	c.objects++
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("object-%03d", c.objects)}
	binding := &admissionv1beta1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionv1beta1.MutatingAdmissionPolicyBindingSpec{PolicyName: "none"},
	}
	class := &storagev1.VolumeAttributesClass{
		ObjectMeta: meta, DriverName: "example.com", Parameters: map[string]string{"a": "b"},
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := client.AdmissionregistrationV1beta1().MutatingAdmissionPolicyBindings().Create(ctx, binding,
			metav1.CreateOptions{})
		return err
	})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := client.StorageV1().VolumeAttributesClasses().Create(ctx, class, metav1.CreateOptions{})
		return err
	})
	return meta.Name
}
