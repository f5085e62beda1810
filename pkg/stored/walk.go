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

const (
	// A request asks for firstPage keys, and later ones for about as many as have pageBytes together. Large objects may
	// follow small ones, so maxPage bounds what one answer takes in memory: etcd has objects of up to 1.5 MiB.
	firstPage = 16
	maxPage   = 100
	pageBytes = 2 << 20
)

// Revisions are the revisions of etcd at which objects were read. First and Last are the same unless etcd was compacted
// meanwhile.
type Revisions struct {
	First, Last int64
}

// walk reads all keys with one of the prefixes, which are in order, and calls visit for each. It reads at the revision
// that etcd has at the beginning. If etcd compacts that revision, walk goes on at the present one: it still visits
// every key that exists from the beginning to the end. It asks for at most a hundred keys at a time.
func walk(ctx context.Context, etcd clientv3.KV, prefixes []string, visit func(*mvccpb.KeyValue)) (Revisions, error) {
	var read Revisions
	var cluster uint64
	page := int64(firstPage)
	for _, prefix := range prefixes {
		from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
		for more := true; more; {
			answer, err := etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(read.Last))
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
			size := 0
			for _, kv := range answer.Kvs {
				visit(kv)
				size += len(kv.Key) + len(kv.Value)
				from = string(append(bytes.Clone(kv.Key), 0)) // the least key after this one
			}
			more = answer.More
			page = nextPage(page, size)
		}
	}
	return read, nil
}

// nextPage returns how many keys to ask for after a page of so many had that size.
func nextPage(page int64, size int) int64 {
	switch {
	case size > 2*pageBytes:
		page = page * pageBytes / int64(size)
	case size < pageBytes/2:
		page *= 2
	}
	return min(max(page, 1), maxPage)
}
