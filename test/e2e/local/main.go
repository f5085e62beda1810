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

// The program runs the conformance suite on a control plane of its own: etcd, two kube-apiservers, an implementation
// with the identity that its manifests give it, and specs in parallel processes. It ends with the suite's exit code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/e2e/implementations"
	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

const (
	apiServers = 2
	// administrator and masters are who the suite is to the API servers.
	administrator, masters = "administrator", "system:masters"
	// interruptedCode is the exit code that shells use for programs that were ended with Ctrl-C.
	interruptedCode = 130
)

// options are the command line.
type options struct {
	implementation, binaries, manager, suite, ginkgo string
	reportDir, labels, focus, version, merge         string
	procs, objects                                   int
	patience                                         time.Duration
}

func parse() *options {
	o := &options{}
	flag.StringVar(&o.implementation, "implementation", implementations.NameSVM,
		"who migrates: "+strings.Join(implementations.Names, ", "))
	flag.StringVar(&o.binaries, "ksvm", "", "folder with migrator, trigger and manifests of kube-storage-version-migrator")
	flag.StringVar(&o.manager, "manager", "_output/test/svm-controller-manager", "svm-controller-manager")
	flag.StringVar(&o.suite, "suite", "_output/bin/e2e.test", "the test binary of the suite")
	flag.StringVar(&o.ginkgo, "ginkgo", "_output/bin/ginkgo", "the command of Ginkgo")
	flag.StringVar(&o.reportDir, "report-dir", "", "folder for reports; none are written without it")
	flag.StringVar(&o.labels, "label-filter", "", "which specs to run, by labels")
	flag.StringVar(&o.focus, "focus", "", "which specs to run, by a regular expression on their names")
	flag.StringVar(&o.version, "implementation-version", "", "version of the implementation, for the report")
	flag.StringVar(&o.merge, "merge", "", "instead of a run: reports of runs, with commas in between, to be made one")
	flag.IntVar(&o.procs, "procs", 2, "how many processes run specs")
	flag.IntVar(&o.objects, "objects", 600, "how many objects a large list has")
	flag.DurationVar(&o.patience, "patience", 3*time.Minute, "how long to wait for the implementation")
	flag.Parse()
	return o
}

func main() {
	o := parse()
	err := run(o)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "e2e:", err)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	os.Exit(1)
}

// merge makes one report of several.
func merge(o *options) error {
	var reports []*suite.Report
	for _, path := range strings.Split(o.merge, ",") {
		report, err := suite.Read(path)
		if err != nil {
			return err
		}
		reports = append(reports, report)
	}
	reports[0].Merge(reports[1:]...)
	return reports[0].Write(filepath.Join(o.reportDir, "report.yaml"))
}

func run(o *options) error {
	if o.merge != "" {
		return merge(o)
	}
	for _, binary := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		if _, err := controlplane.Binary(binary); err != nil {
			return err
		}
	}
	if err := controlplane.EnterNamespaces(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "svm-e2e-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if err := runIn(ctx, o, dir); err != nil {
		if ctx.Err() != nil {
			_ = os.RemoveAll(dir) // Nobody looks at the logs of an interrupted run.
			os.Exit(interruptedCode)
		}
		return fmt.Errorf("%w\nThe logs are in %s/logs", err, dir)
	}
	return os.RemoveAll(dir)
}

// runIn keeps everything in a folder. When it returns, none of the processes that it started runs any more.
func runIn(ctx context.Context, o *options, dir string) (err error) {
	began := time.Now()
	server := controlplane.StorageVersionAPI(controlplane.Server{RuntimeConfig: []string{"api/all=true"}})
	config := controlplane.Config{Dir: dir, Environment: controlplane.CollectLate}
	for range apiServers {
		config.Servers = append(config.Servers, server)
	}
	cp, err := controlplane.New(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Close()) }()
	c := &cluster{ControlPlane: cp, options: o}
	if err := c.install(ctx); err != nil {
		return err
	}
	if err := c.StartImplementation(ctx); err != nil {
		return err
	}
	fmt.Printf("%d API servers and %s run after %.0f s\n", apiServers, o.implementation, time.Since(began).Seconds())
	return c.runSuite(ctx)
}
