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

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	patience = time.Minute
	poll     = 50 * time.Millisecond
)

var classes = map[string]func(context.Context, *controlplane.ControlPlane, options) (*class, error){
	"custom":     newCustom,
	"converted":  newConverted,
	"built-in":   newBuiltIn,
	"aggregated": newAggregated,
}

func classNames() []string { return slices.Sorted(maps.Keys(classes)) }

func newCustom(ctx context.Context, cp *controlplane.ControlPlane, o options) (*class, error) {
	return newDefined(ctx, cp, o, "plains", "Plain", nil)
}

// newConverted returns a resource whose versions a webhook converts. The webhook runs in this process, so its CPU time
// counts as the client's.
func newConverted(ctx context.Context, cp *controlplane.ControlPlane, o options) (*class, error) {
	server, err := webhook.New(cp.ListenAddress())
	if err != nil {
		return nil, err
	}
	conversion := server.Conversion(webhook.SameFields).CustomResourceConversion()
	c, err := newDefined(ctx, cp, o, "converteds", "Converted", conversion)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	c.end = server.Close
	return c, nil
}

func newDefined(
	ctx context.Context, cp *controlplane.ControlPlane, o options, plural, kind string,
	conversion *apiextensionsv1.CustomResourceConversion,
) (*class, error) {
	defined, err := custom.Define(ctx, cp, plural, kind, o.size, conversion)
	if err != nil {
		return nil, err
	}
	c := &class{cp: cp, options: o, resource: defined.Current, object: defined.Object}
	c.stale = func(ctx context.Context) error {
		err := defined.Flip(ctx)
		c.resource = defined.Current
		return err
	}
	return c, nil
}

func newBuiltIn(ctx context.Context, cp *controlplane.ControlPlane, o options) (*class, error) {
	c := &class{cp: cp, options: o, resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}}
	c.object = func(name string) *unstructured.Unstructured {
		payload := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", o.size)))
		return object("v1", "Secret", name, map[string]any{"data": map[string]any{"payload": payload}})
	}
	first, second := "one", "two"
	c.stale = func(ctx context.Context) error {
		first, second = second, first
		server := cp.Servers()[0]
		if err := server.Stop(); err != nil {
			return err
		}
		err := server.Restart(func(s *controlplane.Server) { s.EncryptionConfig = samples.Encryption(first, second) })
		if err != nil {
			return err
		}
		if err := server.Ready(ctx); err != nil {
			return err
		}
		return c.served(ctx)
	}
	return c, c.served(ctx)
}

func newAggregated(ctx context.Context, cp *controlplane.ControlPlane, o options) (*class, error) {
	process, err := cp.StartSampleServer(ctx, "")
	if err != nil {
		return nil, err
	}
	flunders := schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1beta1", Resource: "flunders"}
	c := &class{cp: cp, options: o, resource: flunders}
	c.others = []*controlplane.Process{process}
	c.object = func(name string) *unstructured.Unstructured {
		spec := map[string]any{"flunderReference": strings.Repeat("x", o.size)}
		return object("wardle.example.com/v1beta1", "Flunder", name, map[string]any{"spec": spec})
	}
	return c, c.served(ctx)
}

// served waits until objects can be listed.
func (c *class) served(ctx context.Context) error {
	client, err := c.client(c.cp.AdminConfig())
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		_, err := client.List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
}

func object(apiVersion, kind, name string, content map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: content}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(metav1.NamespaceDefault)
	o.SetName(name)
	return o
}
