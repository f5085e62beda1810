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

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

const (
	registry          = "/registry/"
	statesPrefix      = registry + "migration.k8s.io/storagestates/"
	migrationsPrefix  = registry + "migration.k8s.io/storageversionmigrations/"
	definitionsPrefix = registry + "apiextensions.k8s.io/customresourcedefinitions/"
	electionKey       = registry + "leases/kube-system/" + ElectionLease
	// markKey is written to know that everything before it was seen.
	markKey = registry + "chaos-mark"
	// seenWithin is how long the recorder may be behind an etcd that answers.
	seenWithin = 3 * time.Minute
)

// builtins decodes what API servers store in protobuf.
var builtins = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	if err := errors.Join(
		clientscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), apiextensionsv1beta1.AddToScheme(scheme),
	); err != nil {
		panic(err)
	}
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()

// ErrGap says that something of what was in etcd is not known.
var ErrGap = errors.New("the record of etcd has a gap")

// recorder watches etcd, and adds every revision that matters to the history.
type recorder struct {
	client  *clientv3.Client
	history *model.History
	cancel  context.CancelFunc
	done    chan error
	marks   chan int64
	leader  string // who held the Lease of the election last
}

// record begins to watch after a revision.
func record(ctx context.Context, client *clientv3.Client, history *model.History, after int64) *recorder {
	ctx, cancel := context.WithCancel(ctx)
	r := &recorder{
		client: client, history: history, cancel: cancel, done: make(chan error, 1), marks: make(chan int64, 100),
	}
	watch := client.Watch(ctx, registry, clientv3.WithPrefix(), clientv3.WithRev(after+1))
	go func() { r.done <- r.follow(ctx, watch) }()
	return r
}

func (r *recorder) follow(ctx context.Context, watch clientv3.WatchChan) error {
	for response := range watch {
		if err := response.Err(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w: %w", ErrGap, err)
		}
		for _, event := range response.Events {
			if string(event.Kv.Key) == markKey {
				r.marks <- event.Kv.ModRevision
				continue
			}
			if err := r.take(event); err != nil {
				return fmt.Errorf("%w: %w", ErrGap, err)
			}
		}
	}
	return nil
}

// sync returns when everything that is in etcd now is in the history.
func (r *recorder) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	mark, err := r.client.Put(ctx, markKey, "")
	if err != nil {
		return fmt.Errorf("writing a mark into etcd: %w", err)
	}
	for {
		select {
		case seen := <-r.marks:
			if seen >= mark.Header.Revision {
				return nil
			}
		case err := <-r.done:
			r.done <- err
			return fmt.Errorf("%w: it has ended: %w", ErrGap, err)
		case <-ctx.Done():
			return fmt.Errorf("the record of etcd is behind: %w", ctx.Err())
		}
	}
}

func (r *recorder) stop() error {
	r.cancel()
	return <-r.done
}

func (r *recorder) take(event *clientv3.Event) error {
	key, revision := string(event.Kv.Key), model.Revision{Number: event.Kv.ModRevision, Seen: time.Now()}
	deleted := event.Type == clientv3.EventTypeDelete
	var err error
	if name, found := strings.CutPrefix(key, statesPrefix); found {
		revision.State = &model.State{Name: name}
		if !deleted {
			revision.State.StorageState = &v1alpha1.StorageState{}
			err = json.Unmarshal(event.Kv.Value, revision.State.StorageState)
		}
	} else if name, found := strings.CutPrefix(key, migrationsPrefix); found {
		revision.Migration = &model.Migration{Name: name}
		if !deleted {
			revision.Migration.StorageVersionMigration = &v1alpha1.StorageVersionMigration{}
			err = json.Unmarshal(event.Kv.Value, revision.Migration.StorageVersionMigration)
		}
	} else if strings.HasPrefix(key, definitionsPrefix) && strings.HasSuffix(key, "."+model.Group) && !deleted {
		revision.Definition, err = definitionOf(event.Kv)
	} else if key == electionKey && !deleted {
		revision.Leader, err = leaderOf(event.Kv)
		if err == nil && revision.Leader.Holder == r.leader {
			return nil // It was renewed.
		} else if err == nil {
			r.leader = revision.Leader.Holder
		}
	} else {
		for _, resource := range model.Resources {
			if name, found := strings.CutPrefix(key, resource.Prefix); found && strings.HasPrefix(name, model.NamePrefix) {
				revision.Object = objectOf(resource, name, event)
			}
		}
		if revision.Object == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	r.history.AddRevision(revision)
	return nil
}

// definitionOf reads a definition in any version.
func definitionOf(kv *mvccpb.KeyValue) (*model.Definition, error) {
	content, _, err := contentOf(kv.Value)
	if err != nil {
		return nil, err
	}
	definition := &model.Definition{}
	var errs [3]error
	var versions []any
	definition.Resource, _, errs[0] = unstructured.NestedString(content, "spec", "names", "plural")
	definition.Stored, _, errs[1] = unstructured.NestedStringSlice(content, "status", "storedVersions")
	versions, _, errs[2] = unstructured.NestedSlice(content, "spec", "versions")
	for _, version := range versions {
		fields, _ := version.(map[string]any)
		if fields["storage"] == true {
			definition.Storage, _ = fields["name"].(string)
		}
	}
	return definition, errors.Join(errs[:]...)
}

// leaderOf reads who holds the Lease of the election.
func leaderOf(kv *mvccpb.KeyValue) (*model.Leader, error) {
	content, _, err := contentOf(kv.Value)
	if err != nil {
		return nil, err
	}
	holder, _, err := unstructured.NestedString(content, "spec", "holderIdentity")
	return &model.Leader{Holder: holder}, err
}

// objectOf reads an object of a writer. What is wrong with it is part of the result, for the validators.
func objectOf(resource model.Resource, name string, event *clientv3.Event) *model.Object {
	o := &model.Object{Resource: resource.Resource, Name: name, Created: event.IsCreate()}
	if event.Type == clientv3.EventTypeDelete {
		o.Deleted = true
		return o
	}
	content, gvk, err := contentOf(event.Kv.Value)
	if err != nil {
		o.Broken = err.Error()
		return o
	}
	o.Encoding = gvk.Version
	if resource.Resource == model.Gears.Resource && gvk.Version == "v2" {
		names := model.FieldNames()
		if value, found, _ := unstructured.NestedFieldNoCopy(content, "spec", names["v2"]); found {
			unstructured.RemoveNestedField(content, "spec", names["v2"])
			_ = unstructured.SetNestedField(content, value, "spec", names["v1"]) // spec is a map: it had the other one
		}
	}
	label, _, _ := unstructured.NestedString(content, "metadata", "labels", model.WriteLabel)
	if o.Write, err = strconv.ParseInt(label, 10, 64); err != nil {
		o.Broken = fmt.Sprintf("the label %s is %q", model.WriteLabel, label)
	}
	payload := resource.Payload(content)
	if resource.Resource == model.Secrets.Resource {
		decoded, _ := base64.StdEncoding.DecodeString(payload) // what is no base64 is no payload either
		payload = string(decoded)
	}
	if payload != label {
		o.Broken = fmt.Sprintf("the label is of write %q, the body of write %q", label, payload)
	}
	canonical, err := json.Marshal(content)
	if err != nil {
		o.Broken = err.Error()
	}
	sum := sha256.Sum256(canonical)
	o.Content = base64.RawStdEncoding.EncodeToString(sum[:12])
	return o
}

// contentOf is what the object says apart from its version.
func contentOf(value []byte) (map[string]any, schema.GroupVersionKind, error) {
	var content map[string]any
	var gvk schema.GroupVersionKind
	if strings.HasPrefix(string(value), "{") {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(value); err != nil {
			return nil, gvk, err
		}
		content, gvk = object.Object, object.GroupVersionKind()
	} else {
		object, kind, err := builtins.Decode(value, nil, nil)
		if err != nil {
			return nil, gvk, err
		}
		gvk = *kind
		if content, err = runtime.DefaultUnstructuredConverter.ToUnstructured(object); err != nil {
			return nil, gvk, err
		}
	}
	delete(content, "apiVersion")
	delete(content, "kind")
	return content, gvk, nil
}
