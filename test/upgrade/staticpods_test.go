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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	manifests  = "../../build/manifests"
	staticUser = "system:svm-controller-manager"
	// restartDelay is the first delay of a kubelet before it starts a container again.
	restartDelay = 10 * time.Second
	// lostLease is what a manager says that ends because it could not renew its Lease.
	lostLease = "lost the leader lease"
)

// staticPods are managers with the flags, the identity and the place of the static pod: one on the host of each server,
// which talks to that server alone. A kubelet starts them again if they end.
type staticPods struct {
	*cluster
	pod      *corev1.Pod
	stopping chan struct{}
	kubelets sync.WaitGroup
	restarts atomic.Int64
}

func startStaticPods(t *testing.T, c *cluster) *staticPods {
	t.Helper()
	content, err := os.ReadFile(manifests + "/static-pod/svm-controller-manager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := &staticPods{cluster: c, pod: &corev1.Pod{}, stopping: make(chan struct{})}
	if err := yaml.UnmarshalStrict(content, p.pod); err != nil {
		t.Fatal(err)
	}
	for _, server := range c.Servers() {
		args := p.args(t, server)
		ready := make(chan struct{})
		p.kubelets.Go(func() { p.kubelet(t, server, args, ready) })
		<-ready
	}
	t.Cleanup(p.kubelets.Wait)
	t.Cleanup(func() { close(p.stopping) })
	return p
}

// args are those of the pod. Only the file that the pod mounts is elsewhere.
func (p *staticPods) args(t *testing.T, server *controlplane.APIServer) []string {
	t.Helper()
	container := p.pod.Spec.Containers[0]
	mounted := container.VolumeMounts[0].MountPath
	file := filepath.Join(t.TempDir(), filepath.Base(mounted))
	if err := p.WriteKubeconfig(file, server.Config(staticUser)); err != nil {
		t.Fatal(err)
	}
	args, replaced := slices.Clone(container.Args), 0
	for i, arg := range args {
		if strings.HasSuffix(arg, "="+mounted) {
			args[i] = strings.TrimSuffix(arg, mounted) + file
			replaced++
		}
	}
	if replaced != 1 {
		t.Fatalf("%d of the flags %q name the file %s", replaced, args, mounted)
	}
	return args
}

// kubelet runs the manager of a host. A manager may end only because it lost its Lease: while the leader's own server
// is away, it cannot renew it.
func (p *staticPods) kubelet(t *testing.T, server *controlplane.APIServer, args []string, started chan<- struct{}) {
	for first := true; ; first = false {
		process, err := framework.StartAsGiven(t, p.ControlPlane, framework.Process{
			Name: "manager-on-" + server.Host(), Host: server.Host(), Args: args,
		})
		if err != nil {
			t.Errorf("starting the manager on %s: %v", server.Host(), err)
		}
		if first {
			close(started)
		}
		if err != nil {
			return
		}
		select {
		case <-p.stopping:
			framework.StopManager(t, process)
			return
		case <-process.Done():
		}
		p.restarts.Add(1)
		if lines := strings.Split(strings.TrimSpace(process.Log()), "\n"); !strings.Contains(lines[len(lines)-1], lostLease) {
			t.Errorf("the manager on %s ended: %s", server.Host(), lines[len(lines)-1])
		}
		select {
		case <-p.stopping:
			return
		case <-time.After(restartDelay):
		}
	}
}

// ready complains unless the probe of the pod succeeds on every host.
func (p *staticPods) ready(ctx context.Context) error {
	probe := p.pod.Spec.Containers[0].ReadinessProbe.HTTPGet
	for _, server := range p.Servers() {
		host, err := p.Host(server.Host())
		if err != nil {
			return err
		}
		client, err := rest.UnversionedRESTClientFor(&rest.Config{
			Host: "https://" + probe.Host + ":" + probe.Port.String(), Dial: host.DialContext,
			TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // Nobody signed the certificate that it made.
			ContentConfig: rest.ContentConfig{
				GroupVersion: &schema.GroupVersion{}, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
			},
		})
		if err != nil {
			return err
		}
		if err := client.Get().AbsPath(probe.Path).Do(ctx).Error(); err != nil {
			return err
		}
	}
	return nil
}
