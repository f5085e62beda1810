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
	"net"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	patience = time.Minute
	// example is the StorageVersion that is shown.
	example = "apps.deployments"
)

// demo is what the steps share.
type demo struct {
	cp       *controlplane.ControlPlane
	out      *narrator
	client   kubernetes.Interface
	managers map[string]*controlplane.Process
}

func newDemo(cp *controlplane.ControlPlane, out *narrator) (*demo, error) {
	client, err := kubernetes.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return &demo{cp: cp, out: out, client: client, managers: map[string]*controlplane.Process{}}, nil
}

func (d *demo) showServers(ctx context.Context) error {
	for _, server := range d.cp.Servers() {
		d.out.saw("%s at %s has the identity %s", server.Host(), server.Address(), server.Identity())
	}
	return d.showEntries(ctx)
}

// showEntries prints who encodes the example in what.
func (d *demo) showEntries(ctx context.Context) error {
	sv, err := d.client.InternalV1alpha1().StorageVersions().Get(ctx, example, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("getting a storage version: %w", err)
	}
	for _, entry := range sv.Status.StorageVersions {
		d.out.saw("StorageVersion %s: %s encodes in %s", example, entry.APIServerID, entry.EncodingVersion)
	}
	d.out.saw("StorageVersion %s: the common encoding is %q", example, ptr.Deref(sv.Status.CommonEncodingVersion, "none"))
	return nil
}

func (d *demo) startManagers(ctx context.Context) error {
	d.out.step("Starting two %s processes: one leads, one stands by", names.Manager)
	binary, err := controlplane.Binary(names.Manager)
	if err != nil {
		return err
	}
	for _, name := range []string{"manager-a", "manager-b"} {
		kubeconfig := filepath.Join(d.cp.Dir(), name+".kubeconfig")
		if err := d.cp.WriteKubeconfig(kubeconfig, d.cp.Config(name, "system:masters")); err != nil {
			return err
		}
		port, err := freePort()
		if err != nil {
			return err
		}
		process, err := d.cp.StartProcess(controlplane.Program{
			Name: name, Path: binary,
			Args: []string{"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "-v=2"},
		})
		if err != nil {
			return err
		}
		d.managers[name] = process
	}
	leader, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.out.saw("%s leads and runs its controllers", leader)
	return nil
}

// removeServer lets one API server die for good, and shows that what it left behind goes and that nothing else does.
func (d *demo) removeServer(ctx context.Context) error {
	servers := d.cp.Servers()
	if len(servers) < 2 {
		d.out.saw("with one API server there is none to remove")
		return nil
	}
	gone := servers[len(servers)-1]
	identity := gone.Identity()
	d.out.step("Killing %s for good and deleting its identity Lease: its entries are garbage now", gone.Host())
	if err := gone.Kill(); err != nil {
		return err
	}
	if err := d.client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, identity, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting lease %q: %w", identity, err)
	}
	before, others, err := d.countEntries(ctx, identity)
	if err != nil {
		return err
	}
	d.out.saw("%d entries of %s, %d of the others", before, gone.Host(), others)
	d.out.saw("waiting until the Lease has stayed away for longer than a living server would let it")
	left, kept := before, others
	err = d.until(ctx, func(ctx context.Context) (bool, error) {
		left, kept, err = d.countEntries(ctx, identity)
		return left == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting for %d entries to go: %w", left, err)
	}
	d.out.saw("%d entries of %s, %d of the others", left, gone.Host(), kept)
	if kept != others {
		return fmt.Errorf("entries of living servers were %d and are %d", others, kept)
	}
	return d.showEntries(ctx)
}

func (d *demo) killLeader(ctx context.Context) error {
	leader, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.out.step("Killing the leader, %s, with kill -9", leader)
	if err := d.managers[leader].Kill(); err != nil {
		return err
	}
	delete(d.managers, leader)
	heir, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.out.saw("%s leads now and runs its controllers", heir)
	return nil
}

// awaitLeader returns the name of the living manager whose controllers run.
func (d *demo) awaitLeader(ctx context.Context) (string, error) {
	var leader string
	err := d.until(ctx, func(context.Context) (bool, error) {
		for name, process := range d.managers {
			if !process.Running() {
				return false, fmt.Errorf("%s has ended:\n%s", name, process.Log())
			}
			if strings.Contains(process.Log(), "Controller runs") {
				leader = name
			}
		}
		return leader != "", nil
	})
	if err != nil {
		return "", fmt.Errorf("waiting for a leader: %w", err)
	}
	return leader, nil
}

// countEntries counts the entries of one server and of all others in all StorageVersions.
func (d *demo) countEntries(ctx context.Context, identity string) (own, others int, err error) {
	list, err := d.client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, fmt.Errorf("listing storage versions: %w", err)
	}
	for _, sv := range list.Items {
		for _, entry := range sv.Status.StorageVersions {
			if entry.APIServerID == identity {
				own++
			} else {
				others++
			}
		}
	}
	return own, others, nil
}

func (d *demo) until(ctx context.Context, done wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, done)
}

func freePort() (port int, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
