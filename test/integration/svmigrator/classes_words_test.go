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
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	noteCount      = 60
	bystanderCount = 150
	// asksForPatience is a wait that a webhook asks for, and that nobody else has to know of.
	asksForPatience = time.Minute
	unheldUp        = asksForPatience - 2*time.Second
	sealedNote      = "note-00059"
)

var notes = newCustom("notes", "Note")

// denials are statuses with which a webhook denies notes, by their names. From an API server itself each says something
// about the server, its resources or the client. From a webhook it says that this object is not to be written.
func denials() map[string]metav1.Status {
	denials := map[string]metav1.Status{}
	deny := func(code int32, reason metav1.StatusReason, details func(name string) *metav1.StatusDetails) {
		name := fmt.Sprintf("note-%05d", 3+4*len(denials))
		message := fmt.Sprintf("%s is not to be written, says %d", name, code)
		status := metav1.Status{Code: code, Reason: reason, Message: message}
		if details != nil {
			status.Details = details(name)
		}
		denials[name] = status
	}
	deny(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, nil)
	deny(http.StatusNotFound, metav1.StatusReasonNotFound, nil)
	// What it was told about a Secret of the object's name, and about the object, which its cache has not got yet.
	deny(http.StatusNotFound, metav1.StatusReasonNotFound, func(name string) *metav1.StatusDetails {
		return &metav1.StatusDetails{Kind: "secrets", Name: name}
	})
	deny(http.StatusNotFound, metav1.StatusReasonNotFound, func(name string) *metav1.StatusDetails {
		return &metav1.StatusDetails{Group: notes.Group, Kind: notes.Resource, Name: name}
	})
	deny(http.StatusNotFound, metav1.StatusReasonNotFound, func(string) *metav1.StatusDetails {
		return &metav1.StatusDetails{Kind: "secrets", Name: "ink"}
	})
	deny(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, nil)
	deny(http.StatusConflict, metav1.StatusReasonConflict, nil)
	deny(http.StatusGone, metav1.StatusReasonExpired, nil)
	deny(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, nil)
	return denials
}

// delays are statuses by which a webhook says itself that it may think otherwise later.
func delays() map[string]metav1.Status {
	delays := map[string]metav1.Status{}
	for name, status := range map[string]metav1.Status{
		"note-00001": {
			Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Details: &metav1.StatusDetails{RetryAfterSeconds: int32(asksForPatience / time.Second)},
		},
		"note-00002": {Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable},
		"note-00004": {Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout},
		"note-00005": {Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError},
	} {
		status.Message = name + " is not to be written now"
		delays[name] = status
	}
	return delays
}

// testDeniedInManyWords has single objects denied with statuses that mean something else where they do not come from
// admission.
func testDeniedInManyWords(t *testing.T, c *cluster) {
	bystanders := c.stage(t, "bystanders", "Bystander", bystanderCount)
	c.define(t, notes)
	c.fill(t, notes, "note", noteCount)
	says := map[string]string{sealedNote: sealed}
	statuses := denials()
	for name, status := range statuses {
		says[name] = status.Message
	}
	denied := slices.Sorted(maps.Keys(says))
	both := delays()
	maps.Copy(both, statuses)
	hook := webhook.Start(t, c.ListenAddress()).Validation()
	c.denyNotes(t, hook, both)
	c.sealTooLarge(t, sealedNote)
	c.flip(t, notes, "v2")
	judge := c.judge(t, notes.GroupResource)

	c.startManager(t, "manager", steadily(100)...)
	bystanders.migrate(t)
	bystanders.succeeded(t, soon, 1)
	usually, _ := bystanders.writes.pace(0)
	bystanders.flip(t, bystanders.custom, "v1")
	began := time.Now()
	c.migrate(t, "notes", notes.WithVersion(""))

	t.Run("what is denied", func(t *testing.T) {
		// All is done but what the webhook has yet to make up its mind about.
		c.reports(t, "notes", v1alpha1.MigrationRunning, corev1.ConditionTrue, v1alpha1.MigrationReasonRetrying, soon)
		c.migrate(t, "bystanders-again", bystanders.WithVersion(""))
		bystanders.writes.reach(t, 2*bystanderCount, soon)
		hook.Behave(webhook.Behaviour{Deny: statuses})
		decided := time.Now()
		m := c.ended(t, "notes", soon)
		t.Logf("it took %v, %v of it after the webhook had made up its mind",
			time.Since(began).Round(time.Millisecond), time.Since(decided).Round(time.Millisecond))
		mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied, fmt.Sprintf("%d of %d", len(denied), noteCount))
		progress(t, m, v1alpha1.MigrationProgress{Rewritten: int64(noteCount - len(denied)), Denied: int64(len(denied))})
		namesWith(t, m, says)
		judge.stored(t, notes.encoding("v2"), denied...)
		if stale := c.encodings(t, notes.GroupResource)[notes.encoding("v1")]; stale != len(denied) {
			t.Errorf("%d objects are stored as before, and %d were denied", stale, len(denied))
		}
		judge.onlyEncodings(t, 1)
		if versions := c.storedVersions(t, notes); !sameStrings(versions, "v1", "v2") {
			t.Errorf("status.storedVersions is %v", versions)
		}
		c.triedTwiceAtMost(t, notes, began, denied, slices.Collect(maps.Keys(delays())))
	})
	t.Run("another migration meanwhile", func(t *testing.T) {
		mustSucceed(t, c.ended(t, "bystanders-again", soon))
		took, longest := bystanders.writes.pace(bystanderCount)
		t.Logf("its objects were written in %v, and %v between two of them; usually they are in %v", took, longest, usually)
		if took > 3*usually+unheldUp || longest > unheldUp {
			t.Errorf("its objects were written in %v, %v between two of them, and usually they are in %v",
				took, longest, usually)
		}
	})
}

// denyNotes has a webhook deny notes, by whatever way they are written.
func (c *cluster) denyNotes(t *testing.T, hook *webhook.Hook, statuses map[string]metav1.Status) {
	t.Helper()
	hook.Behave(webhook.Behaviour{Deny: statuses})
	c.ask(t, hook, notes)
	for name, status := range statuses {
		if status.Code == http.StatusMethodNotAllowed {
			c.awaitDenial(t, notes, name, status.Message)
		}
	}
}

// sealTooLarge has a policy deny a note as if the request were too large, by whatever way. It is the strangest reason
// that API servers take of a policy; Unauthorized, which the API's documentation names too, they refuse.
func (c *cluster) sealTooLarge(t *testing.T, name string) {
	t.Helper()
	c.seal(t, notes, fmt.Sprintf("object.metadata.name == '%s'", name), name)
	policies := c.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		policy, err := policies.Get(ctx, notes.Resource, metav1.GetOptions{})
		if err != nil {
			return err
		}
		policy.Spec.Validations[0].Reason = ptr.To(metav1.StatusReasonRequestEntityTooLarge)
		rule := &policy.Spec.MatchConstraints.ResourceRules[0]
		rule.Resources = []string{notes.Resource, notes.Resource + "/status"}
		_, err = policies.Update(ctx, policy, metav1.UpdateOptions{})
		return err
	})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		for _, way := range viaStatusToo {
			err := c.tryPatch(ctx, notes, name, []byte("{}"), way)
			if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), sealed) {
				return fmt.Errorf("writing %s by way of %q is answered with %v", name, way, err)
			}
		}
		return nil
	})
}

// namesWith wants the list of denied objects to be these, each with what was said about it.
func namesWith(t *testing.T, m *v1alpha1.StorageVersionMigration, says map[string]string) {
	t.Helper()
	missing := maps.Clone(says)
	for _, object := range m.Status.DeniedObjects {
		message, wanted := missing[object.Name]
		if !wanted || !identifies(object) || !strings.Contains(object.Message, message) {
			t.Errorf("among the denied objects is %+v", object)
		}
		delete(missing, object.Name)
	}
	for name, message := range missing {
		t.Errorf("among the denied objects is no %s, of which was said: %s", name, message)
	}
}

// triedTwiceAtMost wants that since a time the manager sent one patch about each object, and about denied ones perhaps
// one more, by way of the status. Those that were delayed are another matter.
func (c *cluster) triedTwiceAtMost(t *testing.T, r custom, since time.Time, denied, delayed []string) {
	t.Helper()
	tries := c.tries(t, r.GroupResource, since)
	for name, ways := range tries {
		if slices.Contains(delayed, name) {
			continue
		}
		most := viaResource
		if slices.Contains(denied, name) {
			most = viaStatusToo
		}
		if len(ways) > len(most) || !slices.Equal(ways, most[:len(ways)]) {
			t.Errorf("%s was tried by way of %q, want %q at most", name, ways, most)
		}
	}
	for _, name := range denied {
		if len(tries[name]) == 0 {
			t.Errorf("%s was not tried", name)
		}
	}
}

// pace is in what time objects were written, but for so many of the first, and the longest time between two of them.
func (w *writes) pace(but int) (took, longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	times := w.times[min(but, len(w.times)):]
	if len(times) == 0 {
		return 0, 0
	}
	for i := range times[1:] {
		longest = max(longest, times[i+1].Sub(times[i]))
	}
	return times[len(times)-1].Sub(times[0]), longest
}
