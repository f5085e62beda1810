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

package terminal

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	// soon is how long what takes several steps may take on a busy machine.
	soon = 10 * time.Minute
	// settle is short: nobody writes in these tests.
	settle = "--settle-period=2s"

	group    = "example.com"
	v1       = "example.com/v1"
	v1alpha1 = "example.com/v1alpha1"
)

type cluster struct {
	*framework.Cluster
	kubeconfig string
}

func start(t *testing.T, server controlplane.Server, etcd controlplane.EtcdConfig) *cluster {
	t.Helper()
	server.AllowAll = true
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{server}, Etcd: etcd})
	c := &cluster{framework.Use(t, cp, cp.AdminConfig()), filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cp.WriteKubeconfig(c.kubeconfig, c.AdminConfig); err != nil {
		t.Fatal(err)
	}
	return c
}

// output may be written to and read at the same time.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// svm runs kubectl svm as long as ctx lasts, wants that exit code, and returns what was printed.
func (c *cluster) svm(ctx context.Context, t *testing.T, exit int, in string, args ...string) (out string) {
	t.Helper()
	out, _ = c.svmBoth(ctx, t, exit, in, args...)
	return out
}

// svmBoth returns also what was printed on stderr.
func (c *cluster) svmBoth(ctx context.Context, t *testing.T, exit int, in string, args ...string) (out, errOut string) {
	t.Helper()
	var stdout, stderr output
	c.svmInto(ctx, t, exit, in, &stdout, &stderr, args)
	return stdout.String(), stderr.String()
}

// svmUntil runs kubectl svm until it says something on stderr, then ends it, and wants it to fail.
func (c *cluster) svmUntil(ctx context.Context, t *testing.T, words string, end func(), args ...string) {
	t.Helper()
	var stdout, stderr output
	said := make(chan struct{})
	go func() {
		defer end()
		for began := time.Now(); time.Since(began) < soon; time.Sleep(50 * time.Millisecond) {
			if strings.Contains(stderr.String(), words) {
				close(said)
				return
			}
		}
	}()
	c.svmInto(ctx, t, failed, "", &stdout, &stderr, args)
	select {
	case <-said:
	default:
		t.Errorf("kubectl svm %v does not say %q:\n%s", args, words, stderr.String())
	}
}

func (c *cluster) svmInto(
	ctx context.Context, t *testing.T, exit int, in string, stdout, stderr *output, args []string,
) {
	t.Helper()
	streams := genericiooptions.IOStreams{In: bytes.NewBufferString(in), Out: stdout, ErrOut: stderr}
	got := app.Run(ctx, streams, append([]string{"--kubeconfig=" + c.kubeconfig}, args...))
	if got != exit {
		t.Fatalf("kubectl svm %v ended with %d, want %d:\n%s%s", args, got, exit, stdout.String(), stderr.String())
	}
	t.Logf("kubectl svm %v\n%s%s", args, stdout.String(), stderr.String())
	if mark := strings.TrimPrefix(cli.Kubectl, "kubectl"); strings.Contains(stdout.String()+stderr.String(), mark) {
		t.Errorf("kubectl svm %v prints a command without putting the flags into it", args)
	}
}

// define creates a definition that stores v1alpha1, and objects. Then it makes v1 the storage version.
func (c *cluster) define(t *testing.T, resource, kind string, objects int) schema.GroupResource {
	t.Helper()
	gr := schema.GroupResource{Group: group, Resource: resource}
	definition := samples.Definition(gr, kind, "v1alpha1", "v1alpha1", "v1")
	if _, err := c.Definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := c.Dynamic.Resource(gr.WithVersion("v1alpha1")).Namespace(metav1.NamespaceDefault)
	for i := range objects {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1, "kind": kind, "metadata": map[string]any{"name": fmt.Sprintf("%s-%03d", resource, i)},
			"spec": map[string]any{"number": int64(i)}, // so that there are managedFields
		}}
		framework.Create(t, soon, client, object)
	}
	c.StoreVersion(t, gr, "v1")
	// The server follows its definition a moment later. What it stores of a new object shows that.
	client = c.Dynamic.Resource(gr.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	probe := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1, "kind": kind, "metadata": map[string]any{"name": "probe"},
	}}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		// What an earlier try has created may be left.
		err := client.Delete(ctx, probe.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if _, err := client.Create(ctx, probe, metav1.CreateOptions{}); err != nil {
			return err
		}
		encodings := c.encodings(t, gr)
		if err := client.Delete(ctx, probe.GetName(), metav1.DeleteOptions{}); err != nil {
			return err
		}
		if encodings[v1] == 0 {
			return fmt.Errorf("the server still stores %v", encodings)
		}
		return nil
	})
	return gr
}

func (c *cluster) stored(t *testing.T, gr schema.GroupResource) []controlplane.StoredObject {
	t.Helper()
	objects, err := c.Stored(t.Context(), gr)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// encodings counts the objects in etcd by version.
func (c *cluster) encodings(t *testing.T, gr schema.GroupResource) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, object := range c.stored(t, gr) {
		counts[object.Encoding]++
	}
	return counts
}

func (c *cluster) storedVersions(t *testing.T, gr schema.GroupResource) []string {
	t.Helper()
	definition, err := c.Definitions().Get(t.Context(), gr.String(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return definition.Status.StoredVersions
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
}

// exit codes, by what they mean.
const (
	done    = cli.ExitDone
	failed  = cli.ExitError
	notSafe = cli.ExitNotSafe
)
