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
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
)

const (
	// compactRevKey is where API servers tell each other, and themselves, up to where etcd was compacted.
	compactRevKey = "compact_rev_key"
	expiryPoll    = 250 * time.Millisecond
	expiryTimeout = 3 * time.Minute
)

// ExpireContinueTokens makes the continue tokens of lists of resources expire that were given before: when it returns
// every API server that runs answers them with 410 (Expired), and another token to go on with regardless. Each resource
// must have two objects, or there are no tokens to see it by.
//
// It does what the servers' own compaction of etcd does every five minutes, the record of it included. That record is
// what they wait for: by default (feature gate ListFromCacheSnapshot) they go on to serve old revisions out of memory
// until they look at it, each for each resource, every 15 seconds. With that gate off the tokens expire at once.
func (cp *ControlPlane) ExpireContinueTokens(ctx context.Context, resources ...schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(ctx, expiryTimeout)
	defer cancel()
	var tokens []givenToken
	for _, s := range cp.Servers() {
		if !s.Process().Running() {
			continue
		}
		client, err := metadata.NewForConfig(s.Config(adminUser, adminGroup))
		if err != nil {
			return fmt.Errorf("making a client of %s: %w", s.name, err)
		}
		for _, resource := range resources {
			token := givenToken{server: s.name, resource: resource, client: client.Resource(resource)}
			// The revision of this list is not before that of any list that was answered already, through whichever server.
			if err := token.take(ctx); err != nil {
				return fmt.Errorf("taking a continue token of %s from %s: %w", resource, s.name, err)
			}
			tokens = append(tokens, token)
		}
	}
	if len(tokens) == 0 {
		return errors.New("expiring continue tokens: there is no resource, or no server that runs")
	}
	if err := cp.etcd.compact(ctx); err != nil {
		return fmt.Errorf("compacting etcd: %w", err)
	}
	for _, token := range tokens {
		if err := token.awaitExpiry(ctx); err != nil {
			return fmt.Errorf("waiting for a continue token of %s to expire at %s: %w", token.resource, token.server, err)
		}
	}
	return nil
}

// compact drops every revision of etcd before now, and records that as API servers do.
func (e *Etcd) compact(ctx context.Context) error {
	// Only revisions before the one that is compacted to go. The first write makes one that is later than all that lists
	// have seen.
	last, err := e.client.Put(ctx, compactRevKey, "0")
	if err != nil {
		return fmt.Errorf("writing %s: %w", compactRevKey, err)
	}
	revision := last.Header.Revision
	if _, err := e.client.Put(ctx, compactRevKey, strconv.FormatInt(revision, 10)); err != nil {
		return fmt.Errorf("writing %s: %w", compactRevKey, err)
	}
	if _, err := e.client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("dropping revisions before %d: %w", revision, err)
	}
	return nil
}

// givenToken is a continue token of a list that one server answered.
type givenToken struct {
	server   string
	resource schema.GroupVersionResource
	client   metadata.Getter
	value    string
}

func (t *givenToken) take(ctx context.Context) error {
	list, err := t.client.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if t.value = list.Continue; t.value == "" {
		return errors.New("it has less than two objects, hence no tokens")
	}
	return nil
}

func (t *givenToken) awaitExpiry(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, expiryPoll, true, func(ctx context.Context) (bool, error) {
		_, last = t.client.List(ctx, metav1.ListOptions{Limit: 1, Continue: t.value})
		return apierrors.IsResourceExpired(last), nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}
