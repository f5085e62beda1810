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

package preflight

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// definitionsPerList is how many definitions are listed at a time. They are large.
const definitionsPerList = 50

// gather takes the snapshot. After an error it has what was read.
func (o *Options) gather(ctx context.Context) (Snapshot, error) {
	snapshot := Snapshot{Now: o.Clock.Now()}
	cluster, err := o.Clients.Read(ctx)
	var missing cli.DefinitionsError
	switch {
	case errors.As(err, &missing):
		snapshot.APIProblem, snapshot.StatesUnread = missing.Error(), !missing.NoStates
	case err != nil:
		return snapshot, err
	default:
		snapshot.States, snapshot.Migrations = cluster.States, cluster.Migrations
	}
	if snapshot.Definitions, err = o.definitions(ctx); err != nil {
		return snapshot, err
	}
	if cluster != nil {
		snapshot.recordMissing(cluster.Catalog)
	}
	snapshot.Manager = assess.FindManager(ctx, o.Env, o.Clients, o.ManagerLease, snapshot.States)
	return snapshot, nil
}

// recordMissing records which resources have no StorageState although they are stored, and which groups the API server
// could not list.
func (s *Snapshot) recordMissing(catalog *cli.Catalog) {
	for _, resource := range catalog.Resources() {
		name := resource.String()
		served := len(resource.Versions) > 0
		if served && !resource.Unstored && s.state(name) == nil {
			s.Missing = append(s.Missing, name)
		}
	}
	if catalog.Incomplete != nil {
		s.Unknown = catalog.Incomplete.Error()
	}
}

func (o *Options) definitions(ctx context.Context) ([]documents.Definition, error) {
	transport, err := rest.HTTPClientFor(o.Clients.Config)
	if err != nil {
		return nil, err
	}
	client, err := documents.NewClient(o.Clients.Config, transport)
	if err != nil {
		return nil, err
	}
	var definitions []documents.Definition
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.Get().AbsPath(documents.DefinitionsPath).
			SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion).Do(ctx).Get()
	})
	list.PageSize = definitionsPerList
	err = list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		definitions = append(definitions, *object.(*documents.Definition))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing CustomResourceDefinitions: %w", cli.Explain(err))
	}
	return definitions, nil
}

// otherServerFlags select another API server, and the CA that it is verified with.
const otherServerFlags = "--other-server and --other-server-ca"

// askServer asks another API server for its release and for what it serves.
func (o *Options) askServer(ctx context.Context, host string) (TargetServer, error) {
	config := rest.CopyConfig(o.Clients.Config)
	config.Host = host
	if o.OtherCA != "" {
		config.CAFile, config.CAData = o.OtherCA, nil
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return TargetServer{}, cli.HidePassword(err)
	}
	target := TargetServer{Name: "the API server at " + cli.WithoutPassword(host)}
	version, err := client.ServerVersionWithContext(ctx)
	if err != nil {
		return TargetServer{}, fmt.Errorf("asking %s for its version: %w", target.Name, cli.ExplainOf(err, otherServerFlags))
	}
	if target.Release, err = releases.ParseMinor(version.GitVersion); err != nil {
		return TargetServer{}, fmt.Errorf("%s: %w", target.Name, err)
	}
	client.NoPeerDiscovery = true // This server may not be able to read what other servers serve.
	_, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return TargetServer{}, fmt.Errorf("asking %s what it serves: %w", target.Name, cli.ExplainOf(err, otherServerFlags))
	}
	target.Serves = map[string]bool{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, resource := range list.APIResources {
			target.Serves[storageversion.Hash(version, resource.Kind)] = true
		}
	}
	return target, ctx.Err() // A context that ends leaves groups out.
}
