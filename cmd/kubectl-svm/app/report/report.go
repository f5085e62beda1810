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

// Package report is the command that prints everything that a ticket about stored objects needs.
package report

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/version"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/verify"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
)

const (
	long = `Print everything that a ticket about stored objects needs: whether a manager runs, what "kubectl svm preflight"
finds, all StorageStates and migrations, and with --etcd-endpoints what "kubectl svm verify" counts.

The report has no contents of objects. It names an object only if its rewrite is denied or fails, and then quotes the
API server. Read the report before you share it.

Exit codes: 0 done, 1 error, or a part could not be read. What could be read is printed all the same.`
	example = `  # For a ticket
  kubectl svm report > svm-report.yaml

  # With what is in etcd
  kubectl svm report --etcd-endpoints=http://127.0.0.1:2379 > svm-report.yaml`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	ManagerLease cli.ManagerLease
	Etcd         verify.Etcd
}

// Report is what is printed.
type Report struct {
	Time          metav1.Time        `json:"time"`
	PluginVersion string             `json:"pluginVersion"`
	ServerVersion string             `json:"serverVersion"`
	Manager       assess.Manager     `json:"manager"`
	Findings      preflight.Findings `json:"findings"`
	States        []State            `json:"storageStates"`
	Migrations    []Migration        `json:"storageVersionMigrations"`
	Etcd          *verify.Result     `json:"etcd,omitempty"`
	// Problems are parts of the report that could not be read.
	Problems []string `json:"problems,omitempty"`
}

// State is what matters of a StorageState.
type State struct {
	Name   string                               `json:"name"`
	Spec   migrationv1alpha1.StorageStateSpec   `json:"spec"`
	Status migrationv1alpha1.StorageStateStatus `json:"status"`
}

// Migration is what matters of a StorageVersionMigration.
type Migration struct {
	Name    string                                          `json:"name"`
	Created metav1.Time                                     `json:"created"`
	Spec    migrationv1alpha1.StorageVersionMigrationSpec   `json:"spec"`
	Status  migrationv1alpha1.StorageVersionMigrationStatus `json:"status"`
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env, Output: cli.Output{Format: cli.YAML}}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "report",
		Short:             "Print everything that a ticket needs",
		Long:              long,
		Example:           example,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	})
	o.Etcd.AddTo(cmd.Flags())
	o.ManagerLease.AddTo(cmd.Flags())
	o.Output.AddTo(cmd, cli.YAML, cli.JSON)
	return cmd
}

// Validate checks the options before any request is sent.
func (o *Options) Validate() error {
	if err := o.Etcd.Validate(); err != nil {
		return err
	}
	return o.Output.Validate()
}

// Run prints the report. It prints what can be read, also if a part cannot.
func (o *Options) Run(ctx context.Context) error {
	report := o.gather(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	o.Output.PrintData(o.Env, report)
	if len(report.Problems) > 0 {
		return errors.New("a part of the report could not be read: the report says which, and why")
	}
	return nil
}

func (o *Options) gather(ctx context.Context) *Report {
	r := &Report{
		Time: metav1.NewTime(o.Clock.Now().UTC()), PluginVersion: version.Get().GitVersion,
		Findings: preflight.Findings{}, States: []State{}, Migrations: []Migration{},
	}
	if server, err := o.Clients.Discovery.ServerVersionWithContext(ctx); err != nil {
		r.addProblem("version of the API server", cli.Explain(err))
	} else {
		r.ServerVersion = server.GitVersion
	}
	checks := &preflight.Options{NamedOptions: o.NamedOptions, ManagerLease: o.ManagerLease}
	snapshot, found, err := checks.Find(ctx)
	if err != nil {
		r.addProblem("preflight", err)
	}
	r.Findings = append(r.Findings, found...)
	r.add(&snapshot)
	if len(o.Etcd.Endpoints) > 0 {
		survey, err := (&verify.Options{Env: o.Env, Etcd: o.Etcd}).Survey(ctx)
		r.addEtcd(&survey, err)
	}
	return r
}

// add adds the manager, the StorageStates and the migrations. It leaves out continue tokens, which name objects.
func (r *Report) add(snapshot *preflight.Snapshot) {
	r.Manager = snapshot.Manager
	for i := range snapshot.States {
		s := &snapshot.States[i]
		r.States = append(r.States, State{s.Name, s.Spec, s.Status})
	}
	cli.NewestFirst(snapshot.Migrations)
	for i := range snapshot.Migrations {
		m := &snapshot.Migrations[i]
		m.Spec.ContinueToken = ""
		if progress := m.Status.Progress; progress != nil {
			progress.ContinueToken = ""
		}
		r.Migrations = append(r.Migrations, Migration{m.Name, m.CreationTimestamp, m.Spec, m.Status})
	}
}

func (r *Report) addProblem(what string, err error) {
	r.Problems = append(r.Problems, fmt.Sprintf("%s: %v", what, err))
}

// addEtcd adds what was counted in etcd.
func (r *Report) addEtcd(survey *stored.Survey, err error) {
	if err != nil {
		r.addProblem("etcd", err)
	}
	if err == nil || errors.Is(err, verify.ErrNotCompared) {
		result := verify.ResultOf(survey, err)
		r.Etcd = &result
	}
}
