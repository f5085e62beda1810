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

package controlplane

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

const (
	// SampleGroup is the API group of the sample server: flunders, stored as v1alpha1, and fischers.
	SampleGroup = "wardle.example.com"

	sampleNamespace  = "wardle"
	sampleName       = "sample-apiserver"
	sampleUser       = "sample-apiserver"
	sampleEtcdPrefix = "/registry-sample"
	// Priorities only order groups and versions in discovery.
	samplePriority = 1000
)

var (
	sampleVersions = []string{"v1alpha1", "v1beta1"}
	apiServices    = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
)

// StartSampleServer runs k8s.io/sample-apiserver as an aggregated API server, on the host of that name, or where this
// process is if host is empty. It returns when its APIs are served through every API server. It delegates
// authentication and authorization to the API servers, and stores in the same etcd, apart from them. args are appended;
// one that is set by default too takes its place. When the process has ended it may be called again, with other args:
// the server comes back at another port, with its objects.
func (cp *ControlPlane) StartSampleServer(ctx context.Context, host string, args ...string) (*Process, error) {
	ctx, cancel := context.WithTimeout(ctx, cp.config.StartTimeout)
	defer cancel()
	path, err := findBinary(cp.config.BinDir, sampleServerBinary)
	if err != nil {
		return nil, err
	}
	program := Program{Name: sampleName, Path: path, Host: host}
	place, err := cp.placeFor(program)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", sampleName, err)
	}
	port, err := place.freePort()
	if err != nil {
		return nil, err
	}
	if program.Args, err = cp.sampleArguments(place, port); err != nil {
		return nil, fmt.Errorf("preparing %s: %w", sampleName, err)
	}
	program.Args = arguments(program.Args).with(args...)
	process, err := cp.StartProcess(program)
	if err != nil {
		return nil, err
	}
	if err := cp.registerSample(ctx, place, port); err != nil {
		return nil, fmt.Errorf("registering %s: %w", sampleName, err)
	}
	return process, cp.awaitSample(ctx, process)
}

func (cp *ControlPlane) sampleArguments(place *Host, port int) (arguments, error) {
	serving, err := cp.authority.serving(sampleName, sampleName+"."+sampleNamespace+".svc", place.address)
	if err != nil {
		return nil, err
	}
	if err := serving.write(cp.pkiPath(""), sampleName); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(cp.dir, sampleName+kubeconfigExtension)
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config(sampleUser, adminGroup)); err != nil {
		return nil, err
	}
	return arguments{
		"--etcd-servers=" + cp.etcd.URL(),
		"--etcd-prefix=" + sampleEtcdPrefix,
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + place.address,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + cp.pkiPath(sampleName+".crt"),
		"--tls-private-key-file=" + cp.pkiPath(sampleName+".key"),
	}, nil
}

// registerSample tells the aggregator. There is no service network here, so the Service is an external name, which
// happens to be an address.
func (cp *ControlPlane) registerSample(ctx context.Context, place *Host, port int) error {
	config := cp.AdminConfig()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sampleNamespace}}
	_, err = client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s: %w", sampleNamespace, err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: sampleNamespace, Name: sampleName},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: place.address},
	}
	_, err = client.CoreV1().Services(sampleNamespace).Create(ctx, service, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.CoreV1().Services(sampleNamespace).Update(ctx, service, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("creating service %s: %w", sampleName, err)
	}
	for i, version := range sampleVersions {
		apiService := cp.sampleAPIService(version, port, i+1)
		options := metav1.ApplyOptions{FieldManager: "controlplane", Force: true}
		if _, err := dynamicClient.Resource(apiServices).Apply(ctx, apiService.GetName(), apiService, options); err != nil {
			return fmt.Errorf("applying API service %s: %w", apiService.GetName(), err)
		}
	}
	return nil
}

func (cp *ControlPlane) sampleAPIService(version string, port, priority int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiServices.GroupVersion().String(),
		"kind":       "APIService",
		"metadata":   map[string]any{"name": version + "." + SampleGroup},
		"spec": map[string]any{
			"group":                SampleGroup,
			"version":              version,
			"groupPriorityMinimum": int64(samplePriority),
			"versionPriority":      int64(priority),
			"caBundle":             base64.StdEncoding.EncodeToString(cp.authority.pem),
			"service": map[string]any{
				"namespace": sampleNamespace,
				"name":      sampleName,
				"port":      int64(port),
			},
		},
	}}
}

// awaitSample waits for discovery, through each server's aggregator.
func (cp *ControlPlane) awaitSample(ctx context.Context, process *Process) error {
	for _, s := range cp.Servers() {
		client, err := kubernetes.NewForConfig(s.Config(adminUser, adminGroup))
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		var last error
		err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
			if !process.Running() {
				return false, fmt.Errorf("the server ended: %w\n%s", process.Wait(), process.tail())
			}
			for _, version := range sampleVersions {
				if _, last = client.Discovery().ServerResourcesForGroupVersion(SampleGroup + "/" + version); last != nil {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			return fmt.Errorf("waiting for %s through %s: %w", sampleName, s.name, errors.Join(err, last))
		}
	}
	return nil
}
