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

package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

const (
	encryptedPrefix = "k8s:enc:"
	protobufPrefix  = "k8s\x00"
	// An encrypted value names its provider, the version of its format, and the key.
	providerFields = 3
)

// builtins knows the types that API servers store as protobuf.
var builtins = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientscheme.AddToScheme, apiextensionsv1.AddToScheme, apiextensionsv1beta1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// decoder tells what stored bytes are.
type decoder struct {
	cancel       context.CancelFunc
	transformers []value.Transformer
}

// newDecoder knows every key that a server of cp has, or had before it was restarted with others.
func (cp *ControlPlane) newDecoder(ctx context.Context) (*decoder, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &decoder{cancel: cancel}
	files, err := filepath.Glob(filepath.Join(cp.dir, encryptionHistory, "*"))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("looking for encryption configurations: %w", err)
	}
	for _, file := range files {
		config, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "")
		if err != nil {
			cancel()
			return nil, fmt.Errorf("reading an encryption configuration: %w", err)
		}
		for _, transformer := range config.Transformers {
			d.transformers = append(d.transformers, transformer)
		}
	}
	return d, nil
}

func (d *decoder) close() { d.cancel() }

// rememberEncryption keeps a server's encryption configuration for readers of what it writes.
func (cp *ControlPlane) rememberEncryption(config string) error {
	if config == "" {
		return nil
	}
	dir := filepath.Join(cp.dir, encryptionHistory)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a folder for encryption configurations: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%x.yaml", sha256.Sum256([]byte(config))))
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	// Renamed into place: a reader that comes in between must not find half of it.
	unfinished := filepath.Join(cp.dir, filepath.Base(path)+".new")
	if err := os.WriteFile(unfinished, []byte(config), 0o600); err != nil {
		return fmt.Errorf("keeping an encryption configuration: %w", err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("keeping an encryption configuration: %w", err)
	}
	return nil
}

// decode tells all that can be told about a key and its value. What cannot be read has no encoding, and the name that
// its key suggests: it is an object whose encoding is not known, never no object.
func (d *decoder) decode(kv *mvccpb.KeyValue) StoredObject {
	o := StoredObject{
		Key: string(kv.Key), Raw: kv.Value,
		Version: kv.Version, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
	clear := kv.Value
	if rest, encrypted := bytes.CutPrefix(kv.Value, []byte(encryptedPrefix)); encrypted {
		fields := strings.SplitN(string(rest), ":", providerFields+1)
		o.Provider = strings.Join(fields[:min(providerFields, len(fields))], ":")
		var ok bool
		if clear, ok = d.decrypt(o.Key, kv.Value); !ok {
			o.nameByKey()
			return o
		}
	}
	content, rest, err := o.identify(clear)
	if err != nil {
		o.Encoding, o.Kind, o.Namespace, o.Name = "", "", "", ""
		o.nameByKey()
		return o
	}
	said := canonical(content)
	o.ContentHash = hash(said)
	o.WholeHash = hash(said, canonical(rest))
	return o
}

// remainder is what an object says beside its content.
type remainder struct {
	Kind          string
	ManagedFields any
	// Unknown is the whole encoding if there are fields in it that our types do not know.
	Unknown []byte
}

func (d *decoder) decrypt(key string, sealed []byte) (clear []byte, ok bool) {
	for _, transformer := range d.transformers {
		clear, _, err := transformer.TransformFromStorage(context.Background(), sealed, value.DefaultContext(key))
		if err == nil {
			return clear, true
		}
	}
	return nil, false
}

// nameByKey reads the name off the key, as well as that can be done.
func (o *StoredObject) nameByKey() {
	rest, found := strings.CutPrefix(o.Key, sealedFolder(o.Key))
	if !found {
		return
	}
	if namespace, name, namespaced := strings.Cut(rest, "/"); namespaced {
		o.Namespace, o.Name = namespace, name
		return
	}
	o.Name = rest
}

// identify fills in who the object is and returns what it says.
func (o *StoredObject) identify(clear []byte) (content any, rest remainder, err error) {
	if encoded, isProtobuf := bytes.CutPrefix(clear, []byte(protobufPrefix)); isProtobuf {
		return o.identifyProtobuf(clear, encoded)
	}
	return o.identifyJSON(clear)
}

func (o *StoredObject) identifyJSON(clear []byte) (any, remainder, error) {
	fields := map[string]any{}
	reader := json.NewDecoder(bytes.NewReader(clear))
	reader.UseNumber() // large integers keep all their digits
	if err := reader.Decode(&fields); err != nil {
		return nil, remainder{}, fmt.Errorf("parsing %s: %w", o.Key, err)
	}
	object := unstructured.Unstructured{Object: fields}
	o.Encoding, o.Kind = object.GetAPIVersion(), object.GetKind()
	o.Namespace, o.Name = object.GetNamespace(), object.GetName()
	content, managed := strip(fields)
	return content, remainder{Kind: o.Kind, ManagedFields: managed}, nil
}

func (o *StoredObject) identifyProtobuf(clear, encoded []byte) (any, remainder, error) {
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(encoded); err != nil {
		return nil, remainder{}, fmt.Errorf("parsing %s: %w", o.Key, err)
	}
	o.Encoding, o.Kind = unknown.APIVersion, unknown.Kind
	rest := remainder{Kind: o.Kind}
	object, _, err := protobuf.NewSerializer(builtins, builtins).Decode(clear, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		o.nameByKey()
		return unknown.Raw, rest, nil
	}
	if err != nil {
		return nil, remainder{}, fmt.Errorf("parsing %s: %w", o.Key, err)
	}
	if !encodesTo(object, unknown.Raw) {
		rest.Unknown = unknown.Raw
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, remainder{}, fmt.Errorf("converting %s: %w", o.Key, err)
	}
	accessor := unstructured.Unstructured{Object: fields}
	o.Namespace, o.Name = accessor.GetNamespace(), accessor.GetName()
	content, managed := strip(fields)
	rest.ManagedFields = managed
	return content, rest, nil
}

// encodesTo tells whether object, which was read from raw, is all of it: what our types do not know is dropped in
// reading.
func encodesTo(object runtime.Object, raw []byte) bool {
	message, ok := object.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return false
	}
	again, err := message.Marshal()
	return err == nil && bytes.Equal(again, raw)
}

// strip removes what may change when an object is stored in another encoding, and returns the managedFields of it.
func strip(fields map[string]any) (content map[string]any, managed any) {
	delete(fields, "apiVersion")
	delete(fields, "kind") // protobuf keeps it outside of the object
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		managed = metadata["managedFields"]
	}
	unstructured.RemoveNestedField(fields, "metadata", "managedFields")
	unstructured.RemoveNestedField(fields, "metadata", "resourceVersion")
	return fields, managed
}

// canonical is JSON, which Go writes with sorted keys.
func canonical(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(errors.Join(errors.New("what was read from JSON cannot be written as JSON"), err))
	}
	return text
}

// hash is over values that cannot run into each other: each is one of JSON.
func hash(values ...[]byte) string {
	sum := sha256.New()
	for _, value := range values {
		sum.Write(value)
	}
	return base64.RawStdEncoding.EncodeToString(sum.Sum(nil))
}
