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

package svmigrator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// Each rewrite leaves an old revision of the object in etcd until etcd is compacted. When the database file reaches the
// quota, etcd raises an alarm and the cluster becomes read-only. Nobody tells the migrator the quota. So space bounds
// by how much the file grows.
//
// The file never shrinks. Compaction frees pages in it, and etcd enlarges the file only when no page is free. So a file
// that does not grow has room.

const (
	// sizeMetric is the size of the database file. An API server asks etcd for it whenever somebody reads its metrics.
	sizeMetric = "apiserver_storage_size_bytes"
	// objectsMetric and bytesMetric tell of each resource how many objects there are, and their estimated size, as known
	// some minutes ago. API servers have both since 1.34.
	objectsMetric, bytesMetric = "apiserver_resource_objects", "apiserver_resource_size_estimate_bytes"
	// etcdLabel tells which etcd a size is of.
	etcdLabel = "storage_cluster_id"
	// firstReadings is more than one because the members of etcd have files of different sizes, and an API server that
	// knows several members reports the size of any one.
	firstReadings = 5
	// spaceRetry is how often a pause is looked at, and the migrations that wait for its end.
	spaceRetry = 5 * time.Second
	// spaceForgotten is how long nothing must have been rewritten before a new measurement begins. By then etcd has been
	// compacted.
	spaceForgotten = time.Hour

	// Events are the only objects that API servers read from etcd for every list. For others they keep what a list at a
	// revision returned until they compact etcd themselves, so a compaction by etcd or by a person does not show there.
	// But events often have an etcd of their own, which tells nothing about the others.
	eventsPath, namespacesPath = "/api/v1/events", "/api/v1/namespaces"

	mebibyte = 1 << 20
)

var errNoSize = errors.New("the metrics lack " + sizeMetric)

// space pauses all migrations when the database file of an etcd has grown too much.
type space struct {
	cluster *cluster
	// stopRuns ends all runs. The controller then tries to start them again, and is told why they must wait.
	stopRuns func()
	due      chan struct{}
	// unreported logs whether the API servers report the size.
	unreported retry.Streak
	// measuring is held during the first readings: no run writes before they are there.
	measuring sync.Mutex

	mu        sync.Mutex
	growth    growth
	readAt    time.Time
	writtenAt time.Time
	pause     *spacePause
}

// spacePause is a time in which nothing is rewritten.
type spacePause struct {
	why Decision
	// revision is that of etcd when the file had grown. The pause ends when etcd was compacted at a later one. It is empty
	// before it is known.
	revision  string
	compacted bool
	// listed is the path of what is listed to find out about the compaction.
	listed string
	// sizeUnknown means that the pause ends when an API server tells the size.
	sizeUnknown bool
}

func newSpace(c *cluster, stopRuns func()) *space {
	return &space{
		cluster: c, stopRuns: stopRuns, due: make(chan struct{}, 1), growth: newGrowth(c.options.MaxStorageGrowth),
	}
}

// run reads sizes when that is due, and ends pauses.
func (s *space) run(ctx context.Context) {
	if s.growth.bound == 0 {
		return
	}
	ticker := s.cluster.clock.NewTicker(spaceRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.due:
			s.read(ctx)
		case <-ticker.C():
		}
		s.tryResume(ctx)
	}
}

// rewritten counts a rewrite of an object. It returns at once.
func (s *space) rewritten(resource schema.GroupResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writtenAt = s.cluster.clock.Now()
	if s.growth.bound == 0 || !s.growth.rewritten(resource) {
		return
	}
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// admit returns why nothing may be rewritten now, or nil.
func (s *space) admit(ctx context.Context) *Decision {
	if s.growth.bound == 0 {
		return nil
	}
	s.measuring.Lock()
	defer s.measuring.Unlock()
	if s.begin() {
		for i := 0; i < firstReadings && s.paused() == nil; i++ {
			s.read(ctx)
		}
	}
	return s.paused()
}

func (s *space) paused() *Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause == nil {
		return nil
	}
	return &s.pause.why
}

// begin starts a new measurement if nothing was read or written for spaceForgotten. It reports whether it did.
func (s *space) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cluster.clock.Now()
	idle := now.Sub(s.writtenAt) > spaceForgotten && now.Sub(s.readAt) > spaceForgotten
	if s.pause != nil || !idle {
		return false
	}
	s.growth.files = map[string]*databaseFile{}
	return true
}

// read reads the sizes, and begins a pause if a file has grown too much.
func (s *space) read(ctx context.Context) {
	sizes, err := s.sizes(ctx)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readAt = s.cluster.clock.Now()
	full := s.growth.read(sizes)
	switch {
	case len(sizes.files) > 0:
		s.unreported.Succeeded(ctx, "The API servers report the size of etcd's database again")
	case len(s.growth.files) > 0, !errors.Is(err, errNoSize) && retry.Unanswered(err):
		s.begins(ctx, &spacePause{sizeUnknown: true, why: waitDecision(migrationv1alpha1.MigrationReasonAwaitingStorageSpace,
			"no API server reports the size of etcd's database. Rewriting continues when one does: %v", err)})
		return
	default:
		s.unreported.Failed(ctx, "unreported", "The API servers do not report the size of etcd's database, so the migrator "+
			"cannot pause when it grows. Allow the manager to get /metrics", "err", err)
		return
	}
	if s.pause != nil && s.pause.sizeUnknown {
		s.pause = nil
	}
	if full != nil && s.pause == nil {
		s.begins(ctx, &spacePause{why: waitDecision(migrationv1alpha1.MigrationReasonAwaitingStorageSpace,
			"the database file of etcd has grown by %d MiB to %d MiB since rewriting began, which is all that "+
				"--max-storage-growth allows. Rewriting continues when etcd has been compacted, because that frees space in the "+
				"file. kube-apiserver compacts etcd every five minutes by default",
			(full.last-full.first)/mebibyte, full.last/mebibyte)})
	}
}

// begins begins a pause.
func (s *space) begins(ctx context.Context, p *spacePause) {
	if s.pause == nil {
		klog.FromContext(ctx).Info("All migrations pause", "reason", p.why.Message)
	}
	if p.listed = eventsPath; len(s.growth.files) > 1 {
		p.listed = namespacesPath
	}
	s.pause = p
	s.stopRuns()
}

// sizes returns what the API servers tell, the largest value of each. The error is why they tell no size of a file.
func (s *space) sizes(ctx context.Context) (sizes, error) {
	var mu sync.Mutex
	all := sizes{files: map[string]int64{}, objects: map[schema.GroupResource]objectSizes{}}
	err := s.cluster.observer.AskEach(ctx, func(ctx context.Context, server documents.Reader) error {
		families, err := server.Families(ctx, objectsMetric, bytesMetric, sizeMetric)
		mu.Lock()
		defer mu.Unlock()
		all.add(families)
		if err == nil && families[sizeMetric] == nil || errors.Is(err, proto.Error) {
			return errNoSize // What is no protobuf tells no size, and will tell none later.
		}
		return err
	})
	return all, cmp.Or(err, errNoSize)
}

// tryResume ends the pause if its cause has gone.
func (s *space) tryResume(ctx context.Context) {
	s.mu.Lock()
	p := s.pause
	s.mu.Unlock()
	switch {
	case p == nil:
		return
	case p.sizeUnknown:
		s.read(ctx)
		return
	case !p.compacted:
		s.lookForCompaction(ctx, p)
		return
	}
	// The compaction was seen some seconds ago, and etcd has freed the pages by now.
	s.mu.Lock()
	defer s.mu.Unlock()
	klog.FromContext(ctx).Info("etcd was compacted, migrations continue")
	s.pause = nil
	s.growth.resume()
}

// lookForCompaction finds out whether etcd was compacted since the pause began. After that, nobody can list at the
// revision that etcd had then.
func (s *space) lookForCompaction(ctx context.Context, p *spacePause) {
	request := s.cluster.documents.Client.Get().AbsPath(p.listed).Param("limit", "1").
		SetHeader("Accept", runtime.ContentTypeJSON+documents.AsMetadataList).
		Timeout(readTimeout).MaxRetries(0)
	if p.revision != "" {
		request.Param("resourceVersion", p.revision).
			Param("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	list, result := &metav1.PartialObjectMetadataList{}, request.Do(ctx)
	err := result.Error()
	if err == nil {
		body, _ := result.Raw()
		err = json.Unmarshal(body, list)
	}
	switch {
	case err == nil && p.revision == "":
		p.revision = list.ResourceVersion
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		p.compacted = true
	case apierrors.IsForbidden(err) && p.listed != namespacesPath:
		p.listed, p.revision = namespacesPath, ""
	case err != nil:
		klog.FromContext(ctx).V(2).Info("Looking for a compaction of etcd failed, will retry", "err", err)
	}
}
