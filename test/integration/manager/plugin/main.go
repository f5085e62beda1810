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

// Plugin is somebody else's binary: the manager with three controllers more, one that writes all the time, one that
// needs a custom resource, and one that does not end when it is told to. No line of the manager was changed for it.
//
// After a clean end it looks for goroutines that are left, and fails if there are any.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/cli"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app"
	"sigs.k8s.io/svm-controller-manager/pkg/definition"
)

func main() {
	o := &writerOptions{}
	code := cli.Run(app.NewControllerManagerCommand(
		app.ControllerDescriptor{
			Name:              "writer-controller",
			Aliases:           []string{"writer"},
			DisabledByDefault: true,
			Options:           o,
			New:               o.newWriter,
		},
		app.ControllerDescriptor{
			Name: "stubborn-controller", Aliases: []string{"stubborn"}, DisabledByDefault: true,
			New: func(context.Context, app.ControllerContext) (app.Controller, error) {
				return controllerFunc(func(context.Context) { select {} }), nil
			},
		},
		app.ControllerDescriptor{
			Name: "unmade-controller", Aliases: []string{"unmade"}, DisabledByDefault: true,
			New: func(ctx context.Context, _ app.ControllerContext) (app.Controller, error) {
				klog.FromContext(ctx).Info("Making a controller")
				<-ctx.Done()
				return nil, errors.New("what it is made of has stopped")
			},
		},
		app.ControllerDescriptor{
			Name:    "waiter-controller",
			Aliases: []string{"waiter"},
			Needs:   []app.Need{{Resource: definition.Migrations}},
			New: func(context.Context, app.ControllerContext) (app.Controller, error) {
				return controllerFunc(func(ctx context.Context) { <-ctx.Done() }), nil
			},
		},
	))
	if code == 0 {
		code = leaks()
	}
	os.Exit(code)
}

// leaks says which goroutines are left of the manager a minute after its end. The libraries keep a few for the life of
// a process: the handler of signals, the flusher of the log, and connections that wait for the next request.
func leaks() int {
	err := errors.New("nobody has looked")
	for ended := time.Now(); err != nil && time.Since(ended) < time.Minute; {
		err = findLeaks()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		return 1
	}
	return 0
}

func findLeaks() error {
	return goleak.Find(
		goleak.IgnoreAnyFunction("os/signal.loop"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/server.SetupSignalContext.func1"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
	)
}

type controllerFunc func(context.Context)

func (f controllerFunc) Run(ctx context.Context) error { f(ctx); return nil }

// writerOptions are the flags of the writer.
type writerOptions struct{ interval time.Duration }

func (o *writerOptions) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.interval, "write-interval", 100*time.Millisecond, "How long the writer waits between two writes.")
}

func (o *writerOptions) Validate() []error {
	if o.interval <= 0 {
		return []error{fmt.Errorf("--write-interval must be positive, got %v", o.interval)}
	}
	return nil
}

func (o *writerOptions) newWriter(_ context.Context, c app.ControllerContext) (app.Controller, error) {
	return &writer{client: c.Client, interval: o.interval}, nil
}

// writer writes its process number into a config map, over and over.
type writer struct {
	client   kubernetes.Interface
	interval time.Duration
}

func (w *writer) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for n := 0; ; n++ {
		if err := w.write(ctx, n); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Writing failed")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (w *writer) write(ctx context.Context, n int) error {
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "written"},
		Data:       map[string]string{"by": fmt.Sprint(os.Getpid()), "count": fmt.Sprint(n)},
	}
	maps := w.client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	_, err := maps.Update(ctx, m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, m, metav1.CreateOptions{})
	}
	return err
}
