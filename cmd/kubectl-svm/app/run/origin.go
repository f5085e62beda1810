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

package run

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

const (
	serversAnnotation  = "run.svm/servers"
	revisionAnnotation = "run.svm/revision"
	// askTimeout is how long a command waits at most for the size of etcd, and for its revision after an interruption.
	askTimeout = 5 * time.Second
)

// origin identifies the API servers and the state of etcd with which the progress in a file was made. A restore of etcd
// reverts the objects, but not the file. It requires a restart of the API servers, and so does another encryption key,
// unless the servers reload it.
type origin struct {
	// servers are the processes that held an identity Lease. It is empty if a Lease may not identify a process.
	servers string
	// revision is that of etcd.
	revision int64
}

// observed are what the observer of the migrator lists besides Leases, with their namespaces.
var observed = map[schema.GroupVersionResource]string{
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"):     metav1.NamespaceDefault,
	documents.DefinitionsV1.WithResource("customresourcedefinitions"): metav1.NamespaceNone,
	documents.APIServicesV1.WithResource("apiservices"):               metav1.NamespaceNone,
}

// checkReads returns an error if this user may not list what is observed. The observer would wait for that without end.
// It warns if the user may not read how large the database file of etcd is: the migrator only logs that.
func (o *Options) checkReads(ctx context.Context) error {
	for resource, namespace := range observed {
		_, err := o.Clients.Metadata.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("listing %s: %w", resource.GroupResource(), cli.Explain(err))
		}
	}
	if o.Migrator.MaxStorageGrowth > 0 {
		server := documents.Reader{Client: o.Clients.Discovery.RESTClient(), Timeout: askTimeout}
		if _, err := server.Families(ctx, "apiserver_storage_size_bytes"); apierrors.IsForbidden(err) {
			o.Notef("Warning: --max-storage-growth has no effect: %v", cli.Explain(err))
		}
	}
	return nil
}

// currentOrigin returns the origin of progress that is made from now on.
func (o *Options) currentOrigin(ctx context.Context) (origin, error) {
	list, err := o.Clients.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		LabelSelector: observer.IdentityLabel + "=kube-apiserver",
	})
	if err != nil {
		return origin{}, fmt.Errorf("listing the Leases of the API servers: %w", cli.Explain(err))
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return origin{}, fmt.Errorf("the API server returned no revision of etcd: %w", err)
	}
	version, err := o.Clients.Discovery.ServerVersionWithContext(ctx)
	if err != nil {
		return origin{}, fmt.Errorf("asking the API server for its version: %w", cli.Explain(err))
	}
	// No Lease has the version of its server. Beside a server of 1.35 there may be one of 1.34, which keeps its Lease when
	// it restarts. Beside a newer one there is none, because API servers differ by one minor version at most.
	if storageversion.LeaseMayOutliveProcess(version.GitVersion) {
		return origin{revision: revision}, nil
	}
	var servers []string
	for _, lease := range list.Items {
		servers = append(servers, fmt.Sprintf("%s/%s/%s", lease.Name, lease.UID, ptr.Deref(lease.Spec.HolderIdentity, "")))
	}
	slices.Sort(servers)
	return origin{strings.Join(servers, ","), revision}, nil
}

// stamp writes the origin on a migration.
func (current origin) stamp(m *migrationv1alpha1.StorageVersionMigration) {
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, serversAnnotation, current.servers)
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, revisionAnnotation, strconv.FormatInt(current.revision, 10))
}

// stampEnded writes the revision at the end on migrations that were interrupted. It keeps that of the beginning if the
// API server does not answer, or if the progress does not count any more.
func (o *Options) stampEnded(ctx context.Context, ended []migrationv1alpha1.StorageVersionMigration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	current, err := o.currentOrigin(ctx)
	if err != nil {
		return
	}
	for i := range ended {
		if !ended[i].Finished() && current.continues(&ended[i]) {
			current.stamp(&ended[i])
		}
	}
}

// continues reports whether the progress of a migration can be relied on.
func (current origin) continues(m *migrationv1alpha1.StorageVersionMigration) bool {
	revision, err := strconv.ParseInt(m.Annotations[revisionAnnotation], 10, 64)
	return err == nil && revision <= current.revision &&
		current.servers != "" && current.servers == m.Annotations[serversAnnotation]
}
