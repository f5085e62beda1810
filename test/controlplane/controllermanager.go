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
	"fmt"
	"path/filepath"
	"strconv"
)

const (
	controllersUser     = "system:kube-controller-manager"
	caCertificate       = "ca.crt"
	kubeconfigExtension = ".kubeconfig"
)

// StartControllerManager runs kube-controller-manager against the control plane, where this process is. It does not
// elect a leader, and acts through a service account for each controller, as kubeadm sets it up. args are appended; one
// that is set by default too takes its place.
func (cp *ControlPlane) StartControllerManager(args ...string) (*Process, error) {
	path, err := findBinary(cp.config.BinDir, controllersBinary)
	if err != nil {
		return nil, err
	}
	program := Program{Name: controllersBinary, Path: path}
	place, err := cp.placeFor(program)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", controllersBinary, err)
	}
	port, err := place.freePort()
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(cp.dir, controllersBinary+kubeconfigExtension)
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config(controllersUser)); err != nil {
		return nil, err
	}
	program.Args = arguments{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + place.address,
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(cp.dir, controllersBinary),
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + cp.pkiPath(serviceAccountPrivate),
		"--root-ca-file=" + cp.pkiPath(caCertificate),
	}.with(args...)
	return cp.StartProcess(program)
}
