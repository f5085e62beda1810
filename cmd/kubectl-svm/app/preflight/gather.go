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
	"fmt"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

// definitionsChunk is how many definitions are listed at a time. They are large.
const definitionsChunk = 50

// gather reads what the cluster says now.
func (o *Options) gather(ctx context.Context) (Today, error) {
	var today Today
	if problem := o.Clients.CheckDefinitions(); problem != nil {
		today.APIProblem = problem.Error()
	} else {
		cluster, err := o.Clients.Read(ctx)
		if err != nil {
			return Today{}, err
		}
		today.States, today.Migrations = cluster.States, cluster.Migrations
	}
	var err error
	if today.Definitions, err = o.definitions(ctx); err != nil {
		return Today{}, err
	}
	lease, unread := o.Clients.Lease(ctx, o.ManagerLease)
	today.Manager = assess.ManagerOf(lease, unread, today.States, o.Clock.Now())
	return today, nil
}

func (o *Options) definitions(ctx context.Context) ([]Definition, error) {
	client, err := apiextensions.NewForConfig(o.Clients.Config)
	if err != nil {
		return nil, err
	}
	var definitions []Definition
	options := metav1.ListOptions{Limit: definitionsChunk}
	for {
		list, err := client.CustomResourceDefinitions().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing CustomResourceDefinitions: %w", cli.Explain(err))
		}
		for i := range list.Items {
			definitions = append(definitions, slim(&list.Items[i]))
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return definitions, nil
		}
	}
}

// askServer asks another API server for its release and for what it serves.
func (o *Options) askServer(host string) (Reader, error) {
	config := rest.CopyConfig(o.Clients.Config)
	config.Host = host
	if o.OtherCA != "" {
		config.CAFile, config.CAData = o.OtherCA, nil
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return Reader{}, err
	}
	reader := Reader{Name: "the API server at " + host}
	version, err := client.ServerVersion()
	if err != nil {
		return Reader{}, fmt.Errorf("asking %s for its version: %w", reader.Name, cli.Explain(err))
	}
	if reader.Release, err = releases.ParseMinor(version.GitVersion); err != nil {
		return Reader{}, fmt.Errorf("%s: %w", reader.Name, err)
	}
	groups, err := client.ServerGroups()
	if err != nil {
		return Reader{}, fmt.Errorf("asking %s what it serves: %w", reader.Name, cli.Explain(err))
	}
	reader.Serves = []schema.GroupVersion{}
	for _, group := range groups.Groups {
		for _, v := range group.Versions {
			if served, err := schema.ParseGroupVersion(v.GroupVersion); err == nil {
				reader.Serves = append(reader.Serves, served)
			}
		}
	}
	return reader, nil
}
