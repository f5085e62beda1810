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

package framework

import (
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// Masters is the group of those who may do everything.
	Masters = "system:masters"
	// ManagerUser is who the managers are for the API servers and in their audit logs.
	ManagerUser = "svm-manager"
)

// Cluster is a control plane with clients for it.
type Cluster struct {
	*controlplane.ControlPlane
	AdminConfig *rest.Config
	Kube        kubernetes.Interface
	Dynamic     dynamic.Interface
	Extensions  apiextensions.Interface
	Migration   versioned.Interface

	part *testing.T // that uses the control plane now, or was the last to, if it is used by parts
}

// Use makes clients of cfg for a control plane.
func Use(t *testing.T, cp *controlplane.ControlPlane, cfg *rest.Config) *Cluster {
	t.Helper()
	c := &Cluster{ControlPlane: cp, AdminConfig: cfg}
	var err error
	if c.Kube, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.Extensions, err = apiextensions.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if c.Migration, err = versioned.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	return c
}

// Migrations is a client for migrations.
func (c *Cluster) Migrations() migrationclient.StorageVersionMigrationInterface {
	return c.Migration.MigrationV1alpha1().StorageVersionMigrations()
}

// States is a client for StorageStates.
func (c *Cluster) States() migrationclient.StorageStateInterface {
	return c.Migration.MigrationV1alpha1().StorageStates()
}

// InstallMigrationAPI is to be called once for a control plane.
func (c *Cluster) InstallMigrationAPI(t *testing.T) {
	t.Helper()
	if err := controlplane.InstallMigrationAPI(t.Context(), c.AdminConfig); err != nil {
		t.Fatal(err)
	}
}
