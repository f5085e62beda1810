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

package suite

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/reporters"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	notSupported = "not supported: "
	skipped      = "skipped: "
	// kubeAPIServer is the component of version constraints.
	kubeAPIServer = "kube-apiserver"
	// waits is how many times a spec may wait as long as the patience of the run.
	waits = 3
	// cleanUpWithin is how long it may take to undo one thing.
	cleanUpWithin = 3 * time.Minute
)

// Run runs specs against the implementation that the given function makes, as the test t of a test binary. The binary
// may run in parallel processes of the ginkgo command. Without --kubeconfig it runs none.
func Run(t *testing.T, o Options, implement func(*rest.Config) (Implementation, error), specs []Spec) {
	t.Helper()
	if o.Kubeconfig == "" {
		const why = "no spec runs without --kubeconfig, which names the cluster to run them on"
		fmt.Println(why) // The ginkgo command does not show why a test is skipped.
		t.Skip(why)
	}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	if err := CheckSpecs(specs); err != nil {
		t.Fatal(err)
	}
	config, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	implementation, err := implement(config)
	if err != nil {
		t.Fatal(err)
	}
	release, err := serverVersion(config)
	if err != nil {
		t.Fatal(err)
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	klog.SetLogger(ginkgo.GinkgoLogr) // What clients log is shown if a spec fails.
	if ginkgo.GinkgoParallelProcess() == 1 {
		fmt.Println("The specs run on the cluster at", config.Host)
	}
	var shared *Case
	ginkgo.BeforeSuite(func(ctx ginkgo.SpecContext) {
		shared, err = newCase(o, config, implementation)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
	})
	ginkgo.AfterSuite(func() {
		if shared != nil {
			gomega.Expect(shared.close()).To(gomega.Succeed())
		}
	})
	for _, s := range specs {
		s.declare(&o, implementation, func() *Case { return shared })
	}
	if o.ReportDir != "" {
		ginkgo.ReportAfterSuite("report", func(report ginkgo.Report) {
			made := NewReport(&o, implementation, release.String(), specs, report)
			gomega.Expect(made.Write(filepath.Join(o.ReportDir, "report.yaml"))).To(gomega.Succeed())
			gomega.Expect(reporters.GenerateJUnitReport(report, filepath.Join(o.ReportDir, "junit.xml"))).
				To(gomega.Succeed())
		})
	}
	suiteConfig, reporterConfig := ginkgo.GinkgoConfiguration()
	suiteConfig.SemVerFilter = kubeAPIServer + "=" + release.String()
	ginkgo.RunSpecs(t, "Conformance of "+implementation.Name(), suiteConfig, reporterConfig)
}

// serverVersion is the version of kube-apiserver, without what a distribution adds.
func serverVersion(config *rest.Config) (*version.Version, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	info, err := client.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("asking the API server for its version: %w", err)
	}
	parsed, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("reading the version of the API server: %w", err)
	}
	return parsed, nil
}

// declare makes a spec of Ginkgo.
func (s Spec) declare(o *Options, implementation Implementation, shared func() *Case) {
	args := []any{ginkgo.Label(s.labels()...), ginkgo.SpecTimeout(waits*o.Patience + s.Timeout)}
	if s.Disruptive {
		args = append(args, ginkgo.Serial)
	}
	if s.KubeAPIServer != "" {
		args = append(args, ginkgo.ComponentSemVerConstraint(kubeAPIServer, s.KubeAPIServer))
	}
	args = append(args, func(ctx ginkgo.SpecContext) {
		if feature, is := s.missing(implementation.Features()); is {
			ginkgo.Skip(notSupported + implementation.Name() + " does not have the feature " + string(feature))
		}
		c := shared().begin()
		if need, is := s.unmet(ctx, c); is {
			ginkgo.Skip(skipped + "the run has not " + string(need))
		}
		s.Test(ctx, c)
	})
	ginkgo.It(s.text(), args...)
}

// text begins with the name, by which the report finds the spec.
func (s Spec) text() string { return s.Name + ": " + s.Title }

// nameOf is the name of the spec with that text.
func nameOf(text string) string {
	name, _, _ := strings.Cut(text, ": ")
	return name
}

// CleanUp runs undo after the spec, whatever becomes of it. What is missing then is no mistake.
func (c *Case) CleanUp(undo func(ctx context.Context) error) {
	cleanUp(func(ctx context.Context) error { return ignoreMissing(undo(ctx)) })
}

// cleanUp runs undo after the spec, whatever becomes of it. It tries again if that fails.
func cleanUp(undo func(ctx context.Context) error) {
	ginkgo.DeferCleanup(func(ctx ginkgo.SpecContext) {
		gomega.Eventually(ctx, undo).WithTimeout(cleanUpWithin).WithPolling(time.Second).Should(gomega.Succeed())
	}, ginkgo.NodeTimeout(2*cleanUpWithin))
}
