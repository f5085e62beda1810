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

package rewrite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// maxRestarts is how often a list may start from the beginning. If a server rejects its own continue tokens each time,
// the objects cannot be listed.
const maxRestarts = 5

// maxListTries is how often a list is tried where nothing keeps how far it came: of a million events, one request in a
// thousand may fail without an end to the others. An API server never asks to wait for longer than 32 s.
const maxListTries = 8

// errUnidentified says that a rewrite could not tell whether an object is still the one that was listed. Each would
// count as written by others, and the migration would succeed without a write.
var errUnidentified = errors.New("it lists objects without metadata.resourceVersion or metadata.uid")

// errSameToken says that a list would never end.
var errSameToken = errors.New("it answers a continue token with the same token")

// maxTokenLength is a little less than the 1 MiB of headers that API servers take. The token is in the URL, and has the
// name of the last object in the list, in which a byte may take eight. Names of Roles have no maximum length.
const maxTokenLength = 1<<20 - 16<<10

// errTokenTooLong says that a list cannot go on behind its last object.
var errTokenTooLong = errors.New("it answers with a continue token that is too long for a request")

// listing is the result of one list.
type listing struct {
	token string
	chunk sweep.Chunk
	err   error
}

const (
	// maxAnswerBytes bounds the answers about objects. Metadata of 500 objects are about a megabyte, but annotations and
	// managedFields of one object may be as large. Three migrations list at a time, and decoding takes several times as
	// much.
	maxAnswerBytes = 8 << 20
	// maxUnlimitedBytes bounds lists of one object, which are longer only if the server ignores the limit.
	maxUnlimitedBytes = 64 << 20
)

// mostBytes returns how long the answer to a list of a chunk may be.
func mostBytes(limit int64) int64 {
	if limit == 1 {
		return maxUnlimitedBytes
	}
	return maxAnswerBytes
}

// lister returns a function that lists one chunk of the objects that w rewrites. It adapts limit, the size of the list:
//
//   - After a failure the next list asks for half as many objects. Perhaps a conversion webhook is slow.
//   - If the answer is too long, a list of a quarter as many objects follows at once.
//   - After a success the next list may ask for twice as many, if half of maxAnswerBytes is likely to be enough for
//     them.
//
// A limit of zero means as many objects as a chunk has. A server may ignore the limit, so the answer to a list of one
// object may be longer.
func (e *Engine) lister(w *rewriter, limit *int64) func(ctx context.Context, token string) (sweep.Chunk, error) {
	return func(ctx context.Context, token string) (sweep.Chunk, error) {
		*limit = cmp.Or(*limit, e.chunkSize)
		list, length, err := w.list(ctx, token, *limit, mostBytes(*limit))
		for errors.Is(err, documents.ErrTooLong) && *limit > 1 {
			*limit = max(1, *limit/4)
			list, length, err = w.list(ctx, token, *limit, mostBytes(*limit))
		}
		if err != nil {
			if ctx.Err() == nil {
				*limit = max(1, *limit/2)
			}
			return sweep.Chunk{}, err
		}
		if token != "" && list.Continue == token {
			return sweep.Chunk{}, errSameToken
		}
		if n := len(list.Items); n > 0 && len(list.Continue) > maxTokenLength {
			last := list.Items[n-1]
			return sweep.Chunk{}, fmt.Errorf("%w, because the name of an object in the namespace %q has %d bytes. "+
				"Delete the object, then retry. Its name begins with %q", errTokenTooLong, last.Namespace, len(last.Name),
				truncate(last.Name, 100))
		}
		*limit = min(2**limit, e.chunkSize)
		if len(list.Items) > 0 {
			average := int64(length/len(list.Items) + 1)
			*limit = max(1, min(*limit, maxAnswerBytes/2/average))
		}
		served, err := w.versionsToKeep(ctx)
		if err != nil {
			return sweep.Chunk{}, err
		}
		chunk := sweep.Chunk{Next: list.Continue, ResourceVersion: list.ResourceVersion, Remaining: list.RemainingItemCount}
		if token == "" { // Nobody reads it now: no objects were listed yet, or none of them is being rewritten.
			w.baseline = cmp.Or(w.baseline, list.ResourceVersion)
		}
		if chunk.Next == "" {
			chunk.Remaining = new(int64(0))
		}
		for i := range list.Items {
			item := &list.Items[i]
			if item.ResourceVersion == "" || item.UID == "" {
				return sweep.Chunk{}, fmt.Errorf("%w: %s", errUnidentified, klog.KObj(item))
			}
			object := &sweep.Object{
				Namespace: item.Namespace, Name: item.Name, UID: item.UID, ResourceVersion: item.ResourceVersion,
			}
			entries := item.ManagedFields
			w.keepOriginal(object, item, served)
			if object.NeedsCleaning {
				entries = originalOf(object).cleaned
			}
			chunk.Versions = w.countVersions(chunk.Versions, entries)
			chunk.Objects = append(chunk.Objects, object)
		}
		return chunk, nil
	}
}

// startList sends the list that the sweep wants, if any.
func (r *sweepRunner) startList(ctx context.Context) {
	if r.restart || r.turnOver || r.clock.Now().Before(r.listNotBefore) {
		return
	}
	token, wanted := r.sweep.List()
	if !wanted {
		return
	}
	r.goroutines.Go(func() {
		defer utilruntime.HandleCrashWithContext(ctx)
		chunk, err := r.list(ctx, token)
		r.lists <- listing{token, chunk, err}
	})
}

// handleList handles the answer to a list.
func (r *sweepRunner) handleList(ctx context.Context, l listing) error {
	if l.err == nil {
		r.listTries, r.listFailing, r.endingSince, r.newToken = 0, FailingRequests{}, time.Time{}, false
		r.task.progressed(r.clock.Now())
		for _, object := range r.sweep.Listed(l.chunk) {
			if !r.isSecondSweep() && r.restarts == 0 { // After a restart it may have been counted.
				r.migration.ObjectDone(object, sweep.WrittenByOthers)
			}
		}
		return nil
	}
	logger, f := klog.FromContext(ctx), Classify(l.err, "")
	if f.kind == tokenExpired && f.token != "" && !r.newToken {
		r.newToken = true
		logger.V(2).Info("The continue token expired, listing continues with a new one")
		r.sweep.ListExpired(f.token)
		return nil
	}
	r.sweep.ListFailed()
	switch {
	case f.kind == interrupted:
		return nil
	case f.kind.restartsList,
		f.kind == refused && f.reason == metav1.StatusReasonBadRequest && l.token != "":
		logger.Info("The API server refuses its continue token, listing from the beginning", "token", l.token, "answer", f)
		if r.restarts++; r.restarts > maxRestarts {
			message := fmt.Sprintf("The API server does not continue lists that it began: %s", f)
			return &PermanentError{migrationv1alpha1.MigrationReasonListRefused, message}
		}
		r.restart = true
	default:
		if err := r.checkPermanent(f); err != nil {
			return err
		}
	}
	now := r.clock.Now()
	r.listTries++
	r.listFailing.Since = cmp.Or(r.listFailing.Since, now)
	r.listNotBefore = now.Add(max(RetryDelay(r.listTries), f.retryAfter))
	r.listFailing.Failure, r.listFailing.Next = f, r.listNotBefore
	logger.V(4).Info("Listing failed, will retry", "failure", f, "next", r.listNotBefore)
	return nil
}

// WrittenBefore reports whether an object exists that may have been written before the baseline, which is the resource
// version of a list. Without a baseline it returns true. It also returns the resource version of its own first list.
func (e *Engine) WrittenBefore(
	ctx context.Context, resource Resource, baseline string,
) (older bool, listed string, err error) {
	list, isNewer, token := e.lister(e.newRewriter(resource, ""), new(int64)), newer(resource.Class), ""
	for newToken, tries := false, 0; ; {
		chunk, err := list(ctx, token)
		if err != nil {
			failure := Classify(err, "")
			tries++
			switch {
			case failure.kind == tokenExpired && failure.token != "" && !newToken:
				token, newToken = failure.token, true // The rest of the list is newer than the chunks before.
			case failure.Passes() && tries < maxListTries && failure.retryAfter <= 2*maxResend &&
				retry.Sleep(ctx, e.clock, max(RetryDelay(tries), failure.retryAfter)):
			default:
				return false, "", fmt.Errorf("listing the objects: %w", err)
			}
			continue
		}
		newToken, tries = false, 0
		listed = cmp.Or(listed, chunk.ResourceVersion)
		if baseline == "" || slices.ContainsFunc(chunk.Objects, func(object *sweep.Object) bool {
			return !isNewer(object.ResourceVersion, baseline)
		}) {
			return true, listed, nil
		}
		if token = chunk.Next; token == "" {
			return false, listed, nil
		}
	}
}
