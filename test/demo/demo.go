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
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/client/clientset/versioned"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// patience is how long one step may take on a slow machine.
const patience = 3 * time.Minute

// demo has what the steps share.
type demo struct {
	cp         *controlplane.ControlPlane
	out        *narrator
	kube       kubernetes.Interface
	extensions apiextensions.Interface
	migration  versioned.Interface
	dynamic    dynamic.Interface
	managers   map[string]*controlplane.Process
	// kubeconfig is that of an administrator.
	kubeconfig string

	// stored is what etcd had before the last migration.
	stored []controlplane.StoredObject
	// flipped is when the storage version was changed.
	flipped time.Time
	// attempt is the name of the latest migration.
	attempt string
}

func newDemo(cp *controlplane.ControlPlane, out *narrator) (*demo, error) {
	d := &demo{cp: cp, out: out, managers: map[string]*controlplane.Process{}}
	config := cp.AdminConfig()
	config.WarningHandler = rest.NoWarnings{} // about versions that are old in the newer release
	var errs [4]error
	d.kube, errs[0] = kubernetes.NewForConfig(config)
	d.extensions, errs[1] = apiextensions.NewForConfig(config)
	d.migration, errs[2] = versioned.NewForConfig(config)
	d.dynamic, errs[3] = dynamic.NewForConfig(config)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making clients: %w", err)
	}
	d.kubeconfig = filepath.Join(cp.Dir(), "admin.kubeconfig")
	return d, cp.WriteKubeconfig(d.kubeconfig, config)
}

func (d *demo) showServers(ctx context.Context) error {
	for _, server := range d.cp.Servers() {
		d.out.saw("%s at %s is ready", server.Host(), server.Address())
	}
	d.out.explain("etcd keeps every object in the encoding that was the storage version when it was written. " +
		"Old encodings stay until somebody writes the objects again.")
	return nil
}

// keep leaves everything running until somebody interrupts the demo.
func (d *demo) keep(ctx context.Context) error {
	kubectl, err := controlplane.Binary("kubectl")
	if err != nil {
		return err
	}
	outside, err := d.cp.OutsideConfig(administrator, masters)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(d.cp.Dir(), "kubeconfig")
	if err := d.cp.WriteKubeconfig(kubeconfig, outside); err != nil {
		return err
	}
	d.out.step("Everything goes on until you press Ctrl-C. Look around in another terminal:")
	d.out.command("export KUBECONFIG=%s PATH=%s:$PATH", kubeconfig, filepath.Dir(kubectl))
	d.out.command("kubectl svm status all")
	d.out.command("kubectl svm history")
	<-ctx.Done()
	return nil
}

// define creates a definition and waits until it is served.
func (d *demo) define(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) error {
	client := d.extensions.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the definition %q: %w", definition.Name, err)
	}
	return d.until(ctx, definition.Name+" is served", func(ctx context.Context) (bool, error) {
		live, err := client.Get(ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("getting the definition %q: %w", definition.Name, err)
		}
		for _, condition := range live.Status.Conditions {
			if condition.Type == apiextensionsv1.Established {
				return condition.Status == apiextensionsv1.ConditionTrue, nil
			}
		}
		return false, nil
	})
}

// until polls until done returns true, and fails if a manager ends. what says what it waits for. It tolerates errors,
// because not all servers learn of a change at the same time.
func (d *demo) until(ctx context.Context, what string, done wait.ConditionWithContextFunc) error {
	var last error
	const interval = 100 * time.Millisecond
	err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		for name, process := range d.managers {
			if !process.Running() {
				return false, fmt.Errorf("%s has exited; the end of its log:\n%s", name, tail(process.Log()))
			}
		}
		ok, err := done(ctx)
		if err == nil || ctx.Err() == nil {
			last = err
		}
		return ok && err == nil, nil
	})
	if wait.Interrupted(err) && last != nil {
		err = last
	}
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// tail returns the end of a log.
func tail(log string) string {
	const most = 20
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// number returns n as people write it.
func number[N int | int64](n N) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", number(n/1000), n%1000)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
