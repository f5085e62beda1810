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
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// storedPage bounds how much of etcd is in one answer.
	storedPage = 500
	// registryPrefix is where API servers keep everything.
	registryPrefix = "/registry/"
)

// StoredObject is one object as etcd has it, read behind the API servers' back.
type StoredObject struct {
	Key, Namespace, Name string
	// Encoding is the group version of the stored bytes: "apps/v1", or "v1" for the core group. Empty if they are
	// encrypted and no server here ever had the key.
	Encoding string
	// Kind is the kind of the stored bytes; empty as Encoding.
	Kind string
	// Provider is what the bytes are encrypted with, as "aescbc:v1:key1"; empty if they are in the clear.
	Provider string
	// ContentHash is a hash of what the object says, apart from apiVersion, managedFields, the format (JSON, protobuf) and
	// the encryption. So it stays the same when an object is stored anew in another encoding, if the two versions call and
	// default all its fields alike, as those of a CRD without conversion do, and almost all of the built-in graduations.
	// Where they do not, compare what the API returns. Built-in objects of versions that client-go does not know are
	// hashed over their protobuf fields, which works among such versions only. Empty as Encoding.
	ContentHash string
	// WholeHash is a hash of all that the object says: as ContentHash, with kind and managedFields as they are, down to
	// the apiVersion of each entry. Only apiVersion, the format and the encryption are left out, and resourceVersion,
	// which etcd keeps outside of the value. So it stays the same only if nothing but the encoding changed. Fields of
	// built-in objects that client-go does not know count as well, as bytes. Empty as Encoding.
	WholeHash string
	// Version is etcd's count of writes of the key, from 1 at creation.
	Version int64
	// CreateRevision and ModRevision are etcd's revisions of the first and the last write. The latter is the object's
	// resourceVersion.
	CreateRevision, ModRevision int64
	// Raw is the value in etcd.
	Raw []byte
}

// Stored reads every object of a resource from etcd, in the order of the keys, all as of one moment. It finds them by
// what the stored objects are, not by a table of where API servers keep them, so it works for custom and aggregated
// resources too, and while no API server runs. A resource without objects, and an unknown one, give none.
func (cp *ControlPlane) Stored(ctx context.Context, gr schema.GroupResource) ([]StoredObject, error) {
	decoder, err := cp.newDecoder(ctx)
	if err != nil {
		return nil, err
	}
	defer decoder.close()
	prefixes, revision, err := cp.storagePrefixes(ctx, decoder, gr)
	if err != nil {
		return nil, fmt.Errorf("looking for %s in etcd: %w", gr, err)
	}
	var objects []StoredObject
	for _, prefix := range prefixes {
		found, err := cp.readPrefix(ctx, decoder, prefix, revision)
		if err != nil {
			return nil, fmt.Errorf("reading %s from etcd: %w", gr, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// storagePrefixes finds the folders that hold objects of gr. It looks at one object in each folder of etcd, and skips
// to the next.
func (cp *ControlPlane) storagePrefixes(
	ctx context.Context, d *decoder, gr schema.GroupResource,
) (prefixes []string, revision int64, err error) {
	from := "\x00"
	for {
		opts := []clientv3.OpOption{clientv3.WithFromKey(), clientv3.WithLimit(1), clientv3.WithRev(revision)}
		response, err := cp.etcd.client.Get(ctx, from, opts...)
		if err != nil {
			return nil, 0, fmt.Errorf("reading from key %q: %w", from, err)
		}
		if revision == 0 {
			revision = response.Header.Revision
		}
		if len(response.Kvs) == 0 {
			return slices.Compact(prefixes), revision, nil
		}
		object := d.decode(response.Kvs[0])
		prefix, known := object.folder()
		if known && holds(prefix, object, gr) {
			prefixes = append(prefixes, prefix)
		}
		if from = prefix + "\x00"; known {
			from = clientv3.GetPrefixRangeEnd(prefix)
		}
	}
}

// folder is the key without the parts that name the object, and whether the object could tell which these are. Of what
// cannot be read the folder is guessed from the key.
func (o StoredObject) folder() (prefix string, known bool) {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + o.Name
	}
	if o.Name != "" {
		if prefix, found := strings.CutSuffix(o.Key, "/"+name); found {
			return prefix + "/", true
		}
	}
	if o.Encoding == "" && strings.HasPrefix(o.Key, registryPrefix) {
		return sealedFolder(o.Key), true
	}
	return o.Key, false
}

// sealedFolder guesses the folder of an object that cannot be read: /registry/<resource>/, and
// /registry/<group>/<resource>/ for custom resources, whose groups have a dot.
func sealedFolder(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, registryPrefix), "/")
	depth := 1
	if strings.Contains(parts[0], ".") {
		depth = 2
	}
	return registryPrefix + strings.Join(parts[:min(depth, len(parts))], "/") + "/"
}

// holds tells whether a folder that has object in it is that of gr. Kinds are named after resources, but not always as
// one would guess; folders are named after resources, but not always either (minions, ingress, services/specs). No
// resource of Kubernetes breaks both rules.
func holds(prefix string, object StoredObject, gr schema.GroupResource) bool {
	parts := strings.Split(strings.Trim(prefix, "/"), "/")
	folder := parts[len(parts)-1]
	if object.Encoding == "" {
		inGroup := len(parts) < 3 || parts[len(parts)-2] == gr.Group
		return folder == gr.Resource && inGroup
	}
	group := schema.FromAPIVersionAndKind(object.Encoding, object.Kind).GroupKind()
	guess, _ := meta.UnsafeGuessKindToResource(group.WithVersion(""))
	if group.Group != storageGroup(gr) {
		return false
	}
	return folder == gr.Resource || guess.Resource == gr.Resource
}

// storageGroup is the group whose encodings gr is stored in: its own, but for events, which both groups keep together
// in the older one.
func storageGroup(gr schema.GroupResource) string {
	if gr == (schema.GroupResource{Group: "events.k8s.io", Resource: "events"}) {
		return ""
	}
	return gr.Group
}

// readPrefix reads every object whose key begins with prefix as of a revision, or as of that of the first page if it is
// zero.
func (cp *ControlPlane) readPrefix(
	ctx context.Context, d *decoder, prefix string, revision int64,
) ([]StoredObject, error) {
	var objects []StoredObject
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		response, err := cp.etcd.client.Get(ctx, from,
			clientv3.WithRange(end), clientv3.WithLimit(storedPage), clientv3.WithRev(revision))
		if err != nil {
			return nil, fmt.Errorf("reading from key %q: %w", from, err)
		}
		if revision == 0 {
			revision = response.Header.Revision
		}
		for _, kv := range response.Kvs {
			objects = append(objects, d.decode(kv))
		}
		if !response.More {
			return objects, nil
		}
		// The least key after the last one.
		last := response.Kvs[len(response.Kvs)-1].Key
		from = string(append(bytes.Clone(last), 0))
	}
}
