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
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// planTimeout is for each document that planDryRun reads.
const planTimeout = 15 * time.Second

// dryRun sends every rewrite as a dry run, and prints what the API server would refuse. It does not wait for an
// agreement of the servers, because it writes nothing.
func (o *Options) dryRun(ctx context.Context, resources []schema.GroupResource) error {
	engine, err := rewrite.NewEngine(o.Clients.Config, pacer.New(o.Migrator.Pace), o.Clock, o.Migrator.ChunkSize, 0)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, logr.Discard()) // The command prints at the end what the log would say.
	refused := false
	for _, gr := range resources {
		if storageversion.Expires(gr) {
			o.tell(gr, svmigrator.ObjectsExpire().Message)
			continue
		}
		found, err := planDryRun(ctx, o.Clients.Discovery.RESTClient(), gr)
		if cannot, is := errors.AsType[*rewrite.PermanentError](err); is {
			refused = true
			o.tell(gr, cannot.Message)
			continue
		}
		if err != nil {
			return fmt.Errorf("finding out how %s is served: %w", gr, cli.Explain(err))
		}
		rehearsal := &rehearsal{reporter: reporter{Env: o.Env}, resource: gr.String()}
		err = engine.Run(ctx, rewrite.NewTask(found.Class, sweep.Position{}), *found, rehearsal)
		o.Overwrite("")
		timedOut := err != nil && cli.TimedOut(ctx)
		if timedOut {
			err = nil // What was found until now is printed.
		}
		if permanent, is := errors.AsType[*rewrite.PermanentError](err); is {
			refused, err = true, nil
			o.tell(gr, permanent.Message)
		}
		if err != nil {
			return err
		}
		counts := rehearsal.position.Counts
		refused = refused || counts.Left() > 0
		o.tell(gr, fmt.Sprintf("the API server would accept %d of %d rewrites",
			counts.Processed()-counts.Left(), counts.Processed()))
		o.printDenied(rehearsal.position.Denied)
		if timedOut {
			return cli.Timeout("--timeout has passed before all objects of %s were tried", gr)
		}
	}
	if refused {
		return cli.NotSafe()
	}
	return nil
}

// planDryRun returns what a new migration of a resource would rewrite. If it could not rewrite the objects, the error
// is a PermanentError. planDryRun does not observe all servers. It reads what one of them writes, so the migration may
// wait for others, or come to another decision.
func planDryRun(
	ctx context.Context, client rest.Interface, resource schema.GroupResource,
) (*rewrite.Resource, error) {
	reader := documents.Reader{Client: client, Timeout: planTimeout}
	class, definition, err := classify(ctx, reader, resource)
	if err != nil {
		return nil, err
	}
	requested := rewrite.Resource{GroupVersionResource: resource.WithVersion(""), Class: class, DryRun: true}
	if class == storageversion.Custom {
		return svmigrator.FindToRewrite(ctx, reader, requested, definition.StorageVersion())
	}
	written, stored, err := publishedVersion(ctx, reader, resource)
	if err != nil {
		return nil, err
	}
	found, err := svmigrator.FindToRewrite(ctx, reader, requested, written)
	if err == nil && class == storageversion.Aggregated && !stored {
		return nil, svmigrator.NotStored(resource)
	}
	return found, err
}

// classify returns which kind of server serves a resource, and the definition of a custom one.
func classify(
	ctx context.Context, reader documents.Reader, resource schema.GroupResource,
) (storageversion.Class, *documents.Definition, error) {
	if releases.BuiltIn(resource.Group) {
		return storageversion.BuiltIn, nil, nil
	}
	definition, err := reader.Definition(ctx, resource)
	if documents.IsNotServed(err) {
		return storageversion.Aggregated, nil, nil
	}
	return storageversion.Custom, definition, err
}

// publishedVersion returns the version in which a server writes a resource, as the hash in its discovery documents
// shows. It is empty if that version is not served. stored is false if the documents have no hash.
func publishedVersion(
	ctx context.Context, reader documents.Reader, resource schema.GroupResource,
) (version string, stored bool, err error) {
	versions, err := reader.Versions(ctx, resource.Group)
	if err != nil && !documents.IsNotServed(err) {
		return "", false, err
	}
	hash, served := "", map[storageversion.Encoding]string{}
	for _, version := range versions {
		at := resource.WithVersion(version)
		one, err := reader.ServedAt(ctx, at)
		if err != nil {
			return "", false, err
		}
		if one != nil {
			hash, served[storageversion.Hash(at.GroupVersion(), one.Kind)] = cmp.Or(hash, one.StorageVersionHash), version
		}
	}
	return served[hash], hash != "", nil
}

// tell prints what a dry run has found out about a resource.
func (o *Options) tell(gr schema.GroupResource, message string) {
	fmt.Fprintln(o.Out, o.Paint(cli.Plain, fmt.Sprintf("%s: dry run: %s", gr, message)))
}

// rehearsal is the rewrite.Migration of a dry run. It keeps nothing.
type rehearsal struct {
	reporter
	resource string
	position sweep.Position
}

func (r *rehearsal) SavePosition(_ context.Context, position sweep.Position) error {
	r.position = position
	r.Overwrite(fmt.Sprintf("%s: %d dry runs", r.resource, position.Counts.Processed()))
	return nil
}

func (r *rehearsal) ObjectDone(*sweep.Object, sweep.Outcome) {}

func (r *rehearsal) ReportPhase(_ context.Context, report rewrite.Report) {
	retrying := report.Phase == rewrite.RetryingRequests || report.Phase == rewrite.Stuck
	if now := r.Clock.Now(); retrying && now.Sub(r.saidAt) >= reportEvery {
		r.saidAt = now
		r.Notef("%s: %s", r.resource, report.Retry)
	}
}

func (r *rehearsal) MustYield() bool { return false }
