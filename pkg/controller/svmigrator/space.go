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
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// Each rewrite leaves an old revision of the object in etcd until etcd is compacted. When the database file reaches the
// quota, etcd raises an alarm and the cluster becomes read-only. The migrator cannot read the quota. So space bounds
// how much the file grows.
//
// Only defragmentation makes the file smaller. Compaction frees pages in it, and etcd enlarges the file only when no
// page is free. So a file that does not grow has free pages.

const (
	// sizeMetric is the size of the database file. An API server asks etcd for it whenever somebody reads its metrics.
	// kube-apiserver reports that of its default etcd alone, not that of an etcd for some resources
	// (--etcd-servers-overrides). The label storage_cluster_id is a number that each server gives to its etcds.
	sizeMetric = "apiserver_storage_size_bytes"
	// objectsMetric and bytesMetric are, for each resource, the number of objects and their estimated total size. The
	// values are some minutes old. API servers have both since 1.34.
	objectsMetric, bytesMetric = "apiserver_resource_objects", "apiserver_resource_size_estimate_bytes"
	// sizesTimeout bounds a reading. Before it answers, an API server gathers all of its metrics.
	sizesTimeout = 15 * time.Second
	// firstReadings is more than one because the members of etcd have files of different sizes, and an API server that
	// knows several members reports the size of any one. Growth counts from the largest of these sizes.
	firstReadings = 5
	// spaceRetry is how often the migrator checks whether a pause can end, and whether a migration can start again. An API
	// server that is slow to report the sizes must not be asked all the time: after each reading in a pause the next one
	// comes when the pause has lasted twice as long, but at most after maxSpaceRetry.
	spaceRetry    = 5 * time.Second
	maxSpaceRetry = time.Minute
	// A new measurement begins if nothing was rewritten or read for spaceForgotten. By then etcd has been compacted.
	spaceForgotten = time.Hour

	// A list by name at a revision is always answered from etcd, so it fails after any compaction. API servers answer
	// other lists at a revision from their cache until one of them compacts etcd, so these do not show a compaction by
	// etcd itself or by a person. Definitions are in the default etcd, which events often are not, and the manager may
	// list them anyway. The definition that is named here need not exist.
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	oneDefinition   = "metadata.name=storageversionmigrations.migration.k8s.io"

	rewritingContinues = "Rewriting continues when etcd has been compacted, because that frees space in the file. " +
		"kube-apiserver compacts etcd every five minutes by default"

	mebibyte = 1 << 20
)

var errNoSize = errors.New("the metrics lack " + sizeMetric)

// space pauses all migrations that write when the database file of etcd has grown too much.
type space struct {
	env    *environment
	logger klog.Logger
	// stopRuns ends all runs that may write. The next decision about each migration gives the reason of the pause.
	stopRuns func()
	// due has an element if the sizes must be read again.
	due chan struct{}
	// unreported logs whether the API servers report the size.
	unreported retry.Streak
	// compaction logs whether a compaction of etcd can be noticed.
	compaction retry.Streak
	// measurementMu is held while a run makes the first readings. Other runs wait for them.
	measurementMu sync.Mutex
	// readMu is held during a reading. Two at a time would both subtract what was rewritten before them.
	readMu sync.Mutex

	mu        sync.Mutex
	growth    growth
	readAt    time.Time
	writtenAt time.Time
	pause     *spacePause
}

// spacePause is a time in which nothing is rewritten.
type spacePause struct {
	why   Decision
	since time.Time
	// full means that the file has grown too much, or would. Any other pause ends when an API server reports the size.
	full bool
	// revision is the revision of etcd after the pause had begun, or empty while it is not known. The pause ends when etcd
	// has been compacted at a later revision.
	revision string
}

func newSpace(logger klog.Logger, env *environment, stopRuns func()) *space {
	return &space{
		env: env, logger: logger, stopRuns: stopRuns, due: make(chan struct{}, 1),
		growth: newGrowth(env.options.MaxStorageGrowth),
	}
}

// run reads the sizes when a reading is due, and ends pauses.
func (s *space) run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	if s.growth.maxGrowth == 0 {
		return
	}
	ticker := s.env.clock.NewTicker(spaceRetry)
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
	s.writtenAt = s.env.clock.Now()
	if s.growth.maxGrowth == 0 {
		return
	}
	due := s.growth.rewritten(resource)
	if s.growth.roomUsed() {
		s.startPause(true, "the database file of etcd has grown by all that --max-storage-growth allows, and what was "+
			"rewritten since etcd was compacted has used up the free space in it. "+rewritingContinues)
	}
	if !due {
		return
	}
	if s.growth.readingOverdue() {
		s.startPause(false, "the API servers do not report the size of etcd's database, or only slowly. Rewriting "+
			"continues when an API server has reported it. Check that the manager can reach them and may get /metrics")
	}
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// mayBegin reports whether rewriting may begin. It takes the first readings if they are due.
func (s *space) mayBegin(ctx context.Context) bool {
	if s.growth.maxGrowth == 0 {
		return true
	}
	s.measurementMu.Lock()
	defer s.measurementMu.Unlock()
	if s.startMeasurement() {
		for i := 0; i < firstReadings && s.paused() == nil; i++ {
			s.read(ctx)
		}
		s.mu.Lock()
		if s.pause == nil && ctx.Err() == nil { // Otherwise the next run measures.
			s.growth.endMeasurement()
		}
		s.mu.Unlock()
	}
	return s.paused() == nil
}

func (s *space) paused() *Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause == nil {
		return nil
	}
	return &s.pause.why
}

// startMeasurement starts a new measurement if nothing was read or written for spaceForgotten, or if the last one
// was broken off by a pause or by the end of its run. It reports whether it did.
func (s *space) startMeasurement() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.env.clock.Now()
	idle := now.Sub(s.writtenAt) > spaceForgotten && now.Sub(s.readAt) > spaceForgotten
	if s.pause != nil || !idle && !s.growth.measuring {
		return false
	}
	s.growth.startMeasurement()
	return true
}

// read reads the sizes. It starts a pause if the file has grown too much, if no server answers, or if no server reports
// a size any more. What is rewritten meanwhile counts for the next reading.
func (s *space) read(ctx context.Context) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	s.mu.Lock()
	counted := s.growth.rewrittenBytes
	s.mu.Unlock()
	sizes, allAnswered, err := s.readSizes(ctx)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readAt = s.env.clock.Now()
	full := s.growth.record(sizes, counted)
	switch {
	case sizes.file > 0:
		s.unreported.Succeeded(ctx, "The API servers report the size of etcd's database again")
	case s.growth.file.last > 0, !allAnswered:
		if s.pause != nil { // A new message would be written to the status of each migration.
			s.unreported.Failed(ctx, "unanswered", "No API server reports the size of etcd's database", "err", err)
			return
		}
		s.startPause(false, "no API server reports the size of etcd's database. Rewriting continues when one does: %v", err)
		return
	default:
		s.unreported.Failed(ctx, "unreported", "The API servers do not report the size of etcd's database, so the migrator "+
			"cannot pause when it grows. Allow the manager to get /metrics", "err", err)
	}
	if s.pause != nil && !s.pause.full {
		s.pause = nil
	}
	if f := s.growth.file; full {
		s.startPause(true, "the database file of etcd has grown by %d MiB to %d MiB since rewriting began, which is all "+
			"that --max-storage-growth allows. "+rewritingContinues, (f.last-f.first)/mebibyte, f.last/mebibyte)
	}
}

// startPause starts a pause, logs why, and ends all runs that may write, unless there is a pause already. The caller
// holds s.mu.
func (s *space) startPause(full bool, format string, args ...any) {
	if s.pause != nil {
		return
	}
	why := waitDecision(migrationv1alpha1.MigrationReasonAwaitingStorageSpace, format, args...)
	s.logger.Info("Migrations pause until there is space in etcd", "reason", why.Message)
	s.pause = &spacePause{why: why, since: s.env.clock.Now(), full: full}
	s.stopRuns()
}

// readSizes asks all API servers. allAnswered is false if one of them did not answer or could not be asked: it may
// report the size later. If no server reports the size of the database file, the error says why.
func (s *space) readSizes(ctx context.Context) (all reportedSizes, allAnswered bool, err error) {
	var mu sync.Mutex
	all = reportedSizes{objects: map[schema.GroupResource]objectSizes{}}
	noSize := errNoSize
	err = s.env.observer.AskEach(ctx, func(ctx context.Context, server documents.Reader) error {
		server.Timeout = sizesTimeout
		families, err := server.Families(ctx, objectsMetric, bytesMetric, sizeMetric)
		// An answer that is not protobuf has no size, and later answers will have none.
		if err != nil && retry.IsUnanswered(err) && !errors.Is(err, proto.Error) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all.add(families)
		noSize = cmp.Or(err, noSize)
		return nil
	})
	return all, err == nil, cmp.Or(err, noSize)
}

// tryResume ends the pause if its cause is gone.
func (s *space) tryResume(ctx context.Context) {
	s.mu.Lock()
	p, readAt := s.pause, s.readAt
	s.mu.Unlock()
	switch {
	case p == nil:
	case !p.full && s.env.clock.Since(readAt) >= min(readAt.Sub(p.since), maxSpaceRetry):
		s.read(ctx)
	case !p.full:
	case s.checkCompacted(ctx, p) && retry.Sleep(ctx, s.env.clock, spaceRetry): // Meanwhile etcd frees the pages.
		s.mu.Lock()
		defer s.mu.Unlock()
		s.logger.Info("etcd was compacted, migrations continue")
		s.pause = nil
		s.growth.resume()
	}
}

// checkCompacted reports whether etcd was compacted since the pause began. The first call notes the revision that etcd
// has. After a compaction a list at that revision fails, because the revision has expired.
func (s *space) checkCompacted(ctx context.Context, p *spacePause) bool {
	list, query := &metav1.PartialObjectMetadataList{}, map[string]string{"fieldSelector": oneDefinition}
	if p.revision != "" {
		query["resourceVersion"], query["resourceVersionMatch"] = p.revision, string(metav1.ResourceVersionMatchExact)
	}
	err := s.env.documents.Decode(ctx, definitionsPath, query, runtime.ContentTypeJSON+documents.AsMetadataList,
		"PartialObjectMetadataList", list)
	expired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
	switch {
	case err != nil && !expired:
		s.compaction.Failed(ctx, "unknown", "It is not known whether etcd was compacted, so migrations stay paused; "+
			"will retry", "err", err)
		return false
	case err == nil && p.revision == "":
		p.revision = list.ResourceVersion
	}
	s.compaction.Succeeded(ctx, "It is known again whether etcd was compacted")
	return expired
}
