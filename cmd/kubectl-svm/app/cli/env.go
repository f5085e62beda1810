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

// Package cli is what the commands of kubectl-svm share: streams and clients, names of resources, exit codes, tables
// and colour.
package cli

import (
	"fmt"
	"os"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/term"
	"k8s.io/utils/clock"
	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// FieldManager is the name under which the commands write.
const FieldManager = "kubectl-svm"

// Env has the streams, the clock and the clients of a command. Tests replace them.
type Env struct {
	genericiooptions.IOStreams
	Clock clock.WithTicker
	// Connect makes clients for the cluster that the flags and the kubeconfig name. It sends no request.
	Connect func() (*Clients, error)
	// Colour allows escape sequences on Out.
	Colour bool
	// Interactive allows lines on ErrOut that are overwritten.
	Interactive bool
	// ConnectionFlags are the flags of the command line that select the cluster and the user, as a shell takes them.
	ConnectionFlags string
}

// Clients reach one cluster.
type Clients struct {
	Config    *rest.Config
	Kube      kubernetes.Interface
	Dynamic   dynamic.Interface
	Metadata  metadata.Interface
	Discovery discovery.DiscoveryInterfaceWithContext
	Migration migrationclient.MigrationV1alpha1Interface
}

// NewEnv returns the Env of a real process.
func NewEnv(streams genericiooptions.IOStreams, flags genericclioptions.RESTClientGetter) *Env {
	_, _, noTerminal := term.TerminalSize(streams.Out)
	_, _, notInteractive := term.TerminalSize(streams.ErrOut)
	dumb := os.Getenv("TERM") == "dumb"
	return &Env{
		IOStreams: streams,
		Clock:     clock.RealClock{},
		Connect: func() (*Clients, error) {
			clients, err := connect(flags)
			if err != nil {
				return nil, HidePassword(err) // It may quote a server or a proxy.
			}
			return clients, nil
		},
		Colour:      noTerminal == nil && os.Getenv("NO_COLOR") == "" && !dumb,
		Interactive: notInteractive == nil && !dumb,
	}
}

func connect(flags genericclioptions.RESTClientGetter) (*Clients, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	controller.RefuseRedirects(config)
	documents.BoundAnswers(config)
	config.QPS = -1 // The API server decides what is too much for it.
	c := &Clients{Config: config}
	if c.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.Metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, err
	}
	if c.Migration, err = migrationclient.NewForConfig(config); err != nil {
		return nil, err
	}
	// Discovery is not cached: a resource that was defined a second ago can be named. A client of its own has a timeout,
	// so that no command waits for ever for an API server that accepts connections and then says nothing.
	if c.Discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return nil, err
	}
	return c, nil
}

// Overwrite shows a line on ErrOut that the next one replaces, if ErrOut is a terminal. A terminal cannot return to the
// beginning of a line that it has wrapped, so Overwrite cuts the line to the width that the terminal has now. It
// escapes as Notef does.
func (e *Env) Overwrite(line string) {
	if e.Interactive {
		line = e.legible(line)
		width, _, _ := term.TerminalSize(e.ErrOut) // Zero if it is unknown.
		if letters := []rune(line); width > 0 && len(letters) >= width {
			line = string(letters[:width-1])
		}
		fmt.Fprintf(e.ErrOut, "\r\x1b[K%s", line)
	}
}

// Notef prints a line on ErrOut. It replaces the line that Overwrite shows. It escapes what the line has for terminals,
// because it may quote others, for example a webhook.
func (e *Env) Notef(format string, args ...any) {
	line := e.legible(fmt.Sprintf(format, args...)) + "\n"
	if e.Interactive {
		line = "\r\x1b[K" + line
	}
	_, _ = fmt.Fprint(e.ErrOut, line) // One write, so that several goroutines may print.
}
