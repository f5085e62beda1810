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
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/pkg/stored"
)

// mostNames is how many objects an error names.
const mostNames = 5

// AllStored wants every object of a resource to be stored in a version, which is the one that API servers store now.
func (c *Case) AllStored(ctx context.Context, r Resource, version string) {
	ginkgo.GinkgoHelper()
	var stale []string
	var err error
	if c.etcd != nil {
		stale, err = c.staleInEtcd(ctx, r, version)
	} else {
		stale, err = c.staleByWriting(ctx, r)
	}
	c.Must(err)
	if len(stale) > 0 {
		c.Fail("%d objects of %s are not stored in %s, for example %s",
			len(stale), r, version, strings.Join(stale[:min(len(stale), mostNames)], ", "))
	}
}

// staleByWriting writes each object without a change. Its resourceVersion moves if it was stored otherwise than the API
// server would store it.
func (c *Case) staleByWriting(ctx context.Context, r Resource) ([]string, error) {
	list, err := c.listAll(ctx, r)
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, object := range list.Items {
		written, err := c.objects(r, object.GetNamespace()).
			Patch(ctx, object.GetName(), types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		if err != nil {
			return nil, err
		}
		if written.GetResourceVersion() != object.GetResourceVersion() {
			stale = append(stale, nameOfObject(&object))
		}
	}
	return stale, nil
}

func (c *Case) staleInEtcd(ctx context.Context, r Resource, version string) ([]string, error) {
	list, err := c.listAll(ctx, r)
	if err != nil {
		return nil, err
	}
	encodings, err := c.Encodings(ctx, r)
	if err != nil {
		return nil, err
	}
	var stale []string
	found := 0
	for encoding, keys := range encodings {
		found += len(keys)
		if encoding != r.Encoding(version) {
			stale = append(stale, keys...)
		}
	}
	if found < len(list.Items) {
		return nil, fmt.Errorf("etcd has %d keys under %s, and the API server lists %d objects: are --etcd-endpoints and "+
			"--etcd-prefix those of this cluster?", found, c.keysOf(r), len(list.Items))
	}
	return stale, nil
}

// Encodings reads etcd: the keys of the objects of a resource, by the encoding that they are stored in. It needs
// NeedEtcd.
func (c *Case) Encodings(ctx context.Context, r Resource) (map[string][]string, error) {
	encodings := map[string][]string{}
	unreadable := ""
	err := c.eachStored(ctx, r, func(_ string, kv *mvccpb.KeyValue) {
		form := stored.FormOf(kv.Value)
		if form.APIVersion == "" {
			unreadable = string(kv.Key)
		}
		encodings[form.APIVersion] = append(encodings[form.APIVersion], string(kv.Key))
	})
	if err == nil && unreadable != "" {
		err = fmt.Errorf("nobody can read %s in etcd, maybe because it is encrypted: run the suite without --etcd-endpoints",
			unreadable)
	}
	return encodings, err
}

// writes reads from etcd how often each object of a resource was written, by its namespace and name; nil without access
// to etcd.
func (c *Case) writes(ctx context.Context, r Resource) (map[string]int64, error) {
	if c.etcd == nil {
		return nil, nil
	}
	writes := map[string]int64{}
	return writes, c.eachStored(ctx, r, func(name string, kv *mvccpb.KeyValue) { writes[name] = kv.Version })
}

// keysOf is what the keys of a resource in etcd begin with.
func (c *Case) keysOf(r Resource) string {
	prefix := strings.TrimSuffix(c.Options.EtcdPrefix, "/") + "/"
	if strings.HasSuffix(r.Group, "."+groupDomain) {
		prefix += r.Group + "/"
	}
	return prefix + r.Resource + "/"
}

// eachStored reads the objects of a resource from etcd, as of one revision.
func (c *Case) eachStored(ctx context.Context, r Resource, visit func(name string, kv *mvccpb.KeyValue)) error {
	prefix := c.keysOf(r)
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for revision := int64(0); ; {
		answer, err := c.etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return fmt.Errorf("reading %s from etcd: %w", prefix, err)
		}
		if revision == 0 {
			revision = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			visit(strings.TrimPrefix(string(kv.Key), prefix), kv)
		}
		if !answer.More {
			return nil
		}
		from = string(append(slices.Clone(answer.Kvs[len(answer.Kvs)-1].Key), 0))
	}
}

// Underestimate compares what is recorded about a resource with the bytes in etcd. An error says that objects are
// stored in an encoding that the record excludes, before and after. It needs NeedEtcd.
func (c *Case) Underestimate(ctx context.Context, r Resource, versions ...string) error {
	before, err := c.Implementation.Knowledge(ctx, r.GroupResource)
	if err != nil {
		return err
	}
	encodings, err := c.Encodings(ctx, r)
	if err != nil {
		return err
	}
	// A record may be shortened or extended, rightly, just before or just after the bytes were read.
	after, err := c.Implementation.Knowledge(ctx, r.GroupResource)
	if err != nil {
		return err
	}
	for _, version := range versions {
		keys, hash := encodings[r.Encoding(version)], r.Hash(version)
		if len(keys) > 0 && !before.MayBe(hash) && !after.MayBe(hash) {
			return fmt.Errorf("%d objects of %s are stored in %s, which the record excludes: %+v", len(keys), r, version, after)
		}
	}
	return nil
}
