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

package stored

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pageSize is how many keys a request asks for. It bounds what an answer takes in memory: etcd has objects of up to
// 1.5 MiB.
const pageSize = 50

// Revisions are the revisions of etcd at which objects were read. First and Last are the same unless etcd was compacted
// meanwhile.
type Revisions struct {
	First, Last int64
}

// walk reads all keys with one of the prefixes, which are in order, and calls visit for each. It reads at the revision
// that etcd has at the beginning. If etcd compacts that revision, walk goes on at the present one: it still visits
// every key that exists from the beginning to the end. It asks for pageSize keys at a time.
func walk(ctx context.Context, etcd clientv3.KV, prefixes []string, visit func(*mvccpb.KeyValue)) (Revisions, error) {
	var read Revisions
	var cluster uint64
	for _, prefix := range prefixes {
		from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
		for more := true; more; {
			answer, err := etcd.Get(ctx, from,
				clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(read.Last))
			if errors.Is(err, rpctypes.ErrCompacted) && read.Last != 0 {
				read.Last = 0
				continue
			}
			if err != nil {
				return read, fmt.Errorf("reading etcd from key %q: %w", from, err)
			}
			cluster = cmp.Or(cluster, answer.Header.ClusterId)
			if answer.Header.ClusterId != cluster {
				return read, errors.New("the endpoints belong to different clusters of etcd: read one cluster at a time")
			}
			read.Last = cmp.Or(read.Last, answer.Header.Revision)
			read.First = cmp.Or(read.First, read.Last)
			for _, kv := range answer.Kvs {
				visit(kv)
				from = string(append(bytes.Clone(kv.Key), 0)) // the least key after this one
			}
			more = answer.More
		}
	}
	return read, nil
}
