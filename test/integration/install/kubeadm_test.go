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
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// kubeadmConfig is what an administrator gives to kubeadm init.
	kubeadmConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: ADDRESS}
nodeRegistration: {name: node-1, criSocket: "unix:///run/containerd/containerd.sock"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.1
controlPlaneEndpoint: ENDPOINT
certificatesDir: PKI
`
	kubernetesFolder = "/etc/kubernetes"
)

// TestKubeadm runs the commands of docs/install.md with kubeadm itself, in a cluster that has its configuration.
func TestKubeadm(t *testing.T) {
	t.Parallel()
	c := startCluster(t, controlplane.Server{AllowAll: true}) // kubeadm is an administrator
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	endpoint := strings.TrimPrefix(c.AdminConfig.Host, "https://")
	text := strings.NewReplacer("ADDRESS", c.Servers()[0].Address(), "ENDPOINT", endpoint,
		"PKI", filepath.Join(c.Dir(), "pki")).Replace(kubeadmConfig)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Abs(root + "/_output/bin")
	if err != nil {
		t.Fatal(err)
	}
	run := func(script string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		command.Dir = dir
		command.Env = []string{"HOME=" + dir, "KUBECONFIG=" + c.kubeconfig, "PATH=" + programs + ":" + os.Getenv("PATH"),
			"KUBEADM_INIT_DRYRUN_DIR=" + dir}
		var complaints bytes.Buffer
		command.Stderr = &complaints
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%s\n%v\n%s%s", script, err, out, &complaints)
		}
		return string(out)
	}
	run("kubeadm init phase upload-config kubeadm --config=config.yaml --kubeconfig=$KUBECONFIG")

	documented := kubeadmCommands(t)
	run(strings.ReplaceAll(documented[0], kubernetesFolder, dir))
	made, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "svm-controller-manager.conf"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(made)
	if err != nil {
		t.Fatal(err)
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if review.Status.UserInfo.Username != user {
		t.Errorf("the API server takes the kubeconfig for %q", review.Status.UserInfo.Username)
	}
	ends := strings.TrimSpace(run(strings.ReplaceAll(documented[1], kubernetesFolder, dir)))
	end, err := time.Parse("notAfter=Jan _2 15:04:05 2006 MST", ends)
	const year = 365 * 24 * time.Hour
	if left := time.Until(end); err != nil || left < year-time.Hour || left > year+time.Hour {
		t.Errorf("the certificate ends in %v (%q, %v)", left, ends, err)
	}

	run("kubeadm init phase control-plane controller-manager --config=config.yaml --dry-run")
	checkStaticPod(t, readPod(t, filepath.Join(dir, "kube-controller-manager.yaml")),
		readPod(t, manifests+"/static-pod/svm-controller-manager.yaml"))
}

// kubeadmCommands returns the script that makes the kubeconfig, and the one that tells when its certificate ends.
func kubeadmCommands(t *testing.T) [2]string {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## With kubeadm, as a static pod\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 2 {
		t.Fatalf("the section about kubeadm has %d blocks of commands", len(blocks))
	}
	return [2]string{blocks[0][1], blocks[1][1]}
}

func readPod(t *testing.T, path string) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// checkStaticPod wants our static pod to be like that which kubeadm writes for kube-controller-manager.
func checkStaticPod(t *testing.T, theirs, ours *corev1.Pod) {
	t.Helper()
	type common struct {
		Namespace, Tier, Class string
		Priority               *int32
		HostNetwork            bool
		Seccomp                *corev1.SeccompProfile
		Pull                   corev1.PullPolicy
		Liveness, Startup      corev1.Probe
	}
	of := func(pod *corev1.Pod) common {
		container := pod.Spec.Containers[0]
		// Each has a port and pages of its own.
		probe := func(p *corev1.Probe) corev1.Probe {
			p.HTTPGet.Port, p.HTTPGet.Path = intstr.IntOrString{}, ""
			return *p
		}
		return common{
			Namespace: pod.Namespace, Tier: pod.Labels["tier"], Class: pod.Spec.PriorityClassName,
			Priority:    pod.Spec.Priority,
			HostNetwork: pod.Spec.HostNetwork, Seccomp: pod.Spec.SecurityContext.SeccompProfile,
			Pull: container.ImagePullPolicy, Liveness: probe(container.LivenessProbe), Startup: probe(container.StartupProbe),
		}
	}
	if diff := cmp.Diff(of(theirs), of(ours)); diff != "" {
		t.Errorf("kubeadm writes a static pod in another way (-kubeadm +ours):\n%s", diff)
	}
}
