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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	oxCount = 60
	oxChunk = 10
)

// herd is oxen that weigh in v1 and have mass in v2.
type herd struct {
	*cluster
	custom
	hook *webhook.Hook
}

// testConversionWebhook migrates objects that only a webhook can convert, once while it works and back again while it
// does not.
func testConversionWebhook(t *testing.T, c *cluster) {
	renamed := webhook.RenamedField(map[string]string{"v1": "weight", "v2": "mass"})
	hook := webhook.Start(t, c.ListenAddress()).Conversion(renamed)
	h := &herd{cluster: c, custom: newCustom("oxen", "Ox"), hook: hook}
	c.define(t, h.custom, convertedBy(hook))
	for i := range oxCount {
		ox := h.object(fmt.Sprintf("ox-%03d", i))
		ox.Object["spec"] = map[string]any{"weight": int64(i), "horns": int64(2)}
		if _, err := c.at(h.custom, "v1").Create(t.Context(), ox, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	flags := []string{fmt.Sprintf("--migration-chunk-size=%d", oxChunk), "--max-rewrites-per-second=30"}
	c.startManager(t, "manager", flags...)
	before := h.oxen(t)
	t.Run("it works", func(t *testing.T) {
		c.flip(t, h.custom, "v2")
		h.migrated(t, "works", "v2", h.start(t, "works"), before)
	})
	t.Run("it breaks and is slow", func(t *testing.T) {
		c.flip(t, h.custom, "v1")
		h.hook.Behave(webhook.Behaviour{Delay: time.Second}) // so that it does not end before it breaks
		judge := h.start(t, "breaks")
		c.processed(t, "breaks", 1)
		h.breaks(t, "breaks")
		h.slowsDown(t)
		m := h.migrated(t, "breaks", "v1", judge, before)
		if m.Status.Progress.Retried == 0 {
			t.Errorf("%s does not count requests that were sent again", words(m))
		}
	})
}

func (h *herd) start(t *testing.T, name string) *judgement {
	t.Helper()
	judge := h.judge(t, h.GroupResource)
	h.migrate(t, name, h.WithVersion(""))
	return judge
}

// migrated waits for the end of a migration, and wants that oxen are read as before and stored at the version.
func (h *herd) migrated(
	t *testing.T, name, version string, judge *judgement, before []unstructured.Unstructured,
) *v1alpha1.StorageVersionMigration {
	t.Helper()
	m := h.ended(t, name, 2*soon)
	mustSucceed(t, m)
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: oxCount})
	judge.stored(t, h.encoding(version))
	after, err := h.Stored(t.Context(), h.GroupResource)
	if err != nil {
		t.Fatal(err)
	}
	changes := controlplane.CompareStored(judge.before, after)
	if len(changes.Created) > 0 || len(changes.Deleted) > 0 || len(changes.Encoded) != oxCount {
		t.Errorf("created %v, deleted %v, and %d are encoded otherwise than before",
			changes.Created, changes.Deleted, len(changes.Encoded))
	}
	for key, writes := range changes.Writes {
		if writes != 1 {
			t.Errorf("%s was written %d times", key, writes)
		}
	}
	if diff := cmp.Diff(before, h.oxen(t)); diff != "" {
		t.Errorf("oxen are read otherwise than before (-before +after):\n%s", diff)
	}
	if versions := h.storedVersions(t, h.custom); !sameStrings(versions, version) {
		t.Errorf("status.storedVersions is %v", versions)
	}
	return m
}

// oxen are all of them as v1 shows them, but for what a rewrite changes.
func (h *herd) oxen(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	var list *unstructured.UnstructuredList
	framework.Eventually(t, soon, func(ctx context.Context) (err error) {
		list, err = h.at(h.custom, "v1").List(ctx, metav1.ListOptions{})
		return err
	})
	for i := range list.Items {
		list.Items[i].SetResourceVersion("")
	}
	return list.Items
}

// breaks has the webhook answer nothing but 500, and wants the migration to say so and to wait without a flood of
// requests.
func (h *herd) breaks(t *testing.T, name string) {
	t.Helper()
	h.hook.Behave(webhook.Behaviour{Fail: true})
	h.runningSays(t, name, v1alpha1.MigrationReasonRetrying,
		"conversion webhook for migration.test/v2", "this webhook was told to fail", "the next try is at")
	const window = 6 * time.Second
	began, asked := time.Now(), h.hook.Requests()
	during(t, window, func(ctx context.Context) (complaint, failure error) {
		m, err := h.fetch(ctx, name)
		if err == nil && condition(m, v1alpha1.MigrationRunning) == nil {
			complaint = fmt.Errorf("the outage ended it: %s", words(m))
		}
		return complaint, err
	})
	counts, err := h.Requests(patchesOfManager(h.GroupResource, began))
	if err != nil {
		t.Fatal(err)
	}
	// Each object waits for longer between its tries, from half a second to seconds. A flood would be hundreds.
	patches, took := counts.Total(), time.Since(began)
	asked = h.hook.Requests() - asked
	t.Logf("in %v of an outage there were %d patches, and %d requests to the webhook", took, patches, asked)
	if patches > int(4*oxChunk*took/window) {
		t.Errorf("there were %d patches about %d objects in %v of an outage", patches, oxChunk, took)
	}
	h.hook.Behave(webhook.Behaviour{})
}

// slowsDown has the webhook take two seconds for each answer, and wants the migration to get on all the same.
func (h *herd) slowsDown(t *testing.T) {
	t.Helper()
	h.hook.Behave(webhook.Behaviour{Delay: 2 * time.Second})
	defer h.hook.Behave(webhook.Behaviour{})
	began, before := time.Now(), h.encodings(t, h.GroupResource)[h.encoding("v1")]
	const more = oxChunk
	framework.Eventually(t, soon, func(context.Context) error {
		if now := h.encodings(t, h.GroupResource)[h.encoding("v1")]; now < before+more {
			return fmt.Errorf("%d oxen were migrated before, and %d are now", before, now)
		}
		return nil
	})
	t.Logf("%d oxen took %v of a slow webhook", more, time.Since(began).Round(time.Millisecond))
}
