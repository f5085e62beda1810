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

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/chaos/cluster"
	"sigs.k8s.io/svm-controller-manager/test/chaos/failpoint"
	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/chaos/report"
	"sigs.k8s.io/svm-controller-manager/test/chaos/traffic"
	"sigs.k8s.io/svm-controller-manager/test/chaos/validate"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// ConvergeWithin is how long after the last fault everything must be migrated.
	ConvergeWithin = 15 * time.Minute
	// retryAfter is how long an administrator waits for migrations that failed, before asking for another attempt.
	retryAfter   = 10 * time.Second
	convergePoll = time.Second
	// stalled is the kind of a fault that nobody plans: the whole machine stood still, or was so slow that this process
	// woke up late, by more than lateness.
	stalled     = "machine stalled"
	lateness    = time.Second
	machinePoll = 200 * time.Millisecond
)

var limits = validate.Limits{
	// As long as the manager may doubt which servers there are: the documents of one that came may be missing for a
	// minute.
	Grace: 75 * time.Second,
	// An election, the settle period, and what a busy machine needs.
	Recovery: 30 * time.Second,
	// The manager checks once more before a success. It may sleep between that and its write until its lease is lost,
	// or its write may be on its way for so long, while something is broken.
	Notice: 20 * time.Second,
	// Otherwise little is between the two. But a manager, or its server, may stand still while this process does not, so
	// that nobody records it.
	NoticeAtOnce: 12 * time.Second,
	Chunk:        cluster.ChunkSize, Workers: cluster.Workers,
}

// misbehaviour is what must never be in the log of a manager.
var misbehaviour = regexp.MustCompile(`(?m)^.*(DATA RACE|panic:|Observed a panic|` +
	`must contain currentStorageVersionHash|an entry leaves persisted|epoch never goes down).*$`)

// Config is what to run.
type Config struct {
	Seed            uint64
	Duration, Round time.Duration
	// Faults are the kinds of faults, all if there are none.
	Faults []string
	// Manager is the program of the manager.
	Manager string
	// Dir is where reports, logs and data go.
	Dir  string
	Logf func(format string, args ...any)
}

// scene is a run.
type scene struct {
	Config
	*cluster.Cluster
	traffic *traffic.Traffic
	runner  *failpoint.Runner
	started time.Time
	args    []string
}

// Run makes chaos, and returns an error if a promise was broken. The report is nil if nothing could be started.
func Run(ctx context.Context, config Config) (*report.Report, error) {
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, err
	}
	s := &scene{Config: config, started: time.Now(), args: managerArgs(config.Seed)}
	var err error
	s.Cluster, err = cluster.Start(ctx, cluster.Config{
		Manager: config.Manager, ManagerArgs: s.args, Dir: filepath.Join(config.Dir, "controlplane"), Logf: config.Logf,
	})
	if err != nil {
		return nil, err
	}
	err = s.run(ctx)
	made, judged := s.report()
	return made, errors.Join(err, judged, s.Close())
}

// managerArgs are flags of the second manager, which does not look how busy the servers are. The first one does.
func managerArgs(seed uint64) []string {
	random := rand.New(rand.NewPCG(seed, 1))
	return []string{"--unpaced-rewrites", fmt.Sprintf("--max-rewrites-per-second=%d", 10+random.IntN(40))}
}

func (s *scene) run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watching.Go(func() { s.watchMachine(ctx) })
	if err := s.startTraffic(ctx); err != nil {
		return err
	}
	s.Logf("everything runs after %.0f s", time.Since(s.started).Seconds())
	planner := failpoint.NewPlanner(s.Seed, s.Faults...)
	began := time.Now()
	for n := 0; n == 0 || time.Since(began) < s.Duration; n++ {
		round, err := s.round(ctx, n, planner.Round(s.Round))
		if err != nil {
			round.Problem = err.Error()
		}
		s.History.AddRound(round)
		if err == nil {
			err = s.judge(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watchMachine records when the machine stood still or was slow. To managers this is a fault as any other.
func (s *scene) watchMachine(ctx context.Context) {
	ticker := time.NewTicker(machinePoll)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		if now.Sub(last) > machinePoll+lateness {
			s.Logf("the machine stood still for %.1f s", now.Sub(last).Seconds())
			s.History.AddFault(model.Fault{Kind: stalled, Start: last, End: now})
		}
		last = now
	}
}

func (s *scene) startTraffic(ctx context.Context) error {
	var names []string
	var configs []*rest.Config
	for i, server := range s.Servers() {
		names, configs = append(names, server.Name()), append(configs, s.ServerConfig(i, "writer"))
	}
	var err error
	if s.traffic, err = traffic.New(s.Seed, s.History, names, configs); err != nil {
		return err
	}
	s.runner = failpoint.NewRunner(s.Cluster, s.traffic, s.Logf)
	return s.traffic.Fill(ctx)
}

// round makes faults while the writers write, and waits until everything is migrated.
func (s *scene) round(ctx context.Context, n int, plan failpoint.Plan) (model.Round, error) {
	for _, step := range append(plan.Faults, plan.Changes...) {
		s.Logf("round %d, planned: %s", n+1, step)
	}
	round := model.Round{Start: time.Now()}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { s.traffic.Run(writing, n) })
	err := s.runner.Run(ctx, plan)
	round.Calm = time.Now()
	// The writers go on while the migrations end.
	if err == nil {
		round.Retries, err = s.converge(ctx, n)
	}
	round.Converged = time.Now()
	stop()
	running.Wait()
	s.Logf("round %d: migrated %.0f s after the last fault", n+1, round.Converged.Sub(round.Calm).Seconds())
	return round, err
}

// converge waits until everything is migrated. An administrator asks for another attempt at migrations that failed.
func (s *scene) converge(ctx context.Context, n int) (retries int, err error) {
	began := time.Now()
	ticker := time.NewTicker(convergePoll)
	defer ticker.Stop()
	for attempt := 1; ; {
		err = s.converged(ctx)
		if err == nil {
			return retries, nil
		}
		if errors.Is(err, cluster.ErrGap) {
			return retries, err
		}
		if time.Since(began) > ConvergeWithin {
			return retries, fmt.Errorf("%v after the last fault not everything is migrated: %w", ConvergeWithin, err)
		}
		if time.Since(began) > retryAfter*time.Duration(attempt) {
			asked, err := s.Retry(ctx, fmt.Sprintf("%d-%d", n, attempt))
			if err != nil {
				s.Logf("asking for another attempt: %v", err)
			}
			attempt++
			retries += asked
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return retries, ctx.Err()
		}
	}
}

func (s *scene) converged(ctx context.Context) error {
	if err := s.Sync(ctx); err != nil {
		return err
	}
	world, record := model.NewWorld(), s.History.Record()
	revisions, _ := record.Revisions(len(record.Eras) - 1)
	for _, revision := range revisions {
		world.Apply(revision)
	}
	return validate.Converged(world, func(r model.Resource) string { return s.Storage(r, world) })
}

// judge judges all that happened so far. The answers to the last writes may have come earlier than what they are about
// came into the history.
func (s *scene) judge(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, convergePoll, ConvergeWithin, true, func(ctx context.Context) (bool, error) {
		last = s.Sync(ctx)
		return last == nil || errors.Is(last, cluster.ErrGap), nil
	})
	if err := errors.Join(err, last); err != nil {
		return err
	}
	if err := s.readPatches(); err != nil {
		return err
	}
	result := validate.All(s.History.Record(), limits)
	if n := len(result.Violations); n > 0 {
		return fmt.Errorf("%d violations, the first is %s", n, result.Violations[0])
	}
	return nil
}

// readPatches reads from the audit logs what the managers rewrote.
func (s *scene) readPatches() error {
	var patches []model.Patch
	_, err := s.Requests(controlplane.RequestFilter{Verbs: []string{"patch"}, Match: func(e *auditv1.Event) bool {
		if e.ObjectRef == nil || e.ResponseStatus == nil || !strings.HasPrefix(e.ObjectRef.Name, model.NamePrefix) {
			return false
		}
		if e.ResponseStatus.Code == 200 && !strings.Contains(e.RequestURI, "dryRun=") {
			patches = append(patches, model.Patch{
				Resource: e.ObjectRef.Resource, Name: e.ObjectRef.Name, Received: e.RequestReceivedTimestamp.Time, Code: 200,
			})
		}
		return false
	}})
	s.History.SetPatches(patches)
	return err
}

// report judges, and writes the report beside the logs.
func (s *scene) report() (*report.Report, error) {
	errs := []error{s.readPatches()}
	record := s.History.Record()
	result := validate.All(record, limits)
	made := report.New(s.Seed, s.started, record, result)
	made.ManagerArgs = s.args
	for _, node := range s.Managers {
		made.ManagerStarts += node.Starts()
	}
	for _, path := range s.ManagerLogs() {
		log, err := os.ReadFile(path)
		errs = append(errs, err)
		for _, line := range misbehaviour.FindAllString(string(log), 3) {
			made.Problems = append(made.Problems, path+": "+line)
		}
	}
	if made.Rewrites == 0 || made.Patches == 0 || made.Sharp == 0 {
		made.Problems = append(made.Problems, "nothing was migrated, or no state ever excluded an encoding: "+
			"the run shows nothing")
	}
	if n := len(result.Violations); n > 0 {
		errs = append(errs, fmt.Errorf("%d promises were broken", n))
	}
	if n := len(made.Problems); n > 0 {
		errs = append(errs, fmt.Errorf("%d problems, the first is %s", n, made.Problems[0]))
	}
	errs = append(errs, write(filepath.Join(s.Dir, "report.json"), made.JSON),
		write(filepath.Join(s.Dir, "report.txt"), func(w io.Writer) error {
			made.Text(w)
			return nil
		}))
	return made, errors.Join(errs...)
}

func write(path string, to func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(to(file), file.Close())
}
