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
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

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
		found, err := svmigrator.PlanDryRun(ctx, o.Clients.Discovery.RESTClient(), gr)
		if instead, is := errors.AsType[*rewrite.PermanentError](err); is {
			refused = refused || instead.Reason != migrationv1alpha1.MigrationReasonObjectsExpire
			o.tell(gr, instead.Message)
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

func (r *rehearsal) ObjectDone(rewrite.Result) {}

func (r *rehearsal) ReportPhase(_ context.Context, report rewrite.Report) {
	retrying := report.Phase == rewrite.RetryingRequests || report.Phase == rewrite.Stuck
	if now := r.Clock.Now(); retrying && now.Sub(r.saidAt) >= reportEvery {
		r.saidAt = now
		r.Notef("%s: %s", r.resource, report.Retry)
	}
}

func (r *rehearsal) MustYield() bool { return false }
