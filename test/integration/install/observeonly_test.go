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

package install

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

func testObserveOnly(t *testing.T, c *cluster) {
	process, _ := c.startManager(t, "observer", c.accountConfig(t, account), deploymentArgs(t, "observe-only")...)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return c.migratedReason(ctx, widgets, v1alpha1.StateReasonNotSelected)
	})
	if plan := c.plan(t); !strings.Contains(plan, observesOnly) {
		t.Errorf("the plan does not tell that nobody migrates:\n%s", plan)
	}
	c.outdatedIsDeleted(t)
	framework.StopManager(t, process)
	own := sets.New("storagestates", "leases", "events", "subjectaccessreviews", "tokenreviews")
	c.eachRequest(t, time.Time{}, func(event *auditv1.Event) {
		reads := slices.Contains([]string{"get", "list", "watch"}, event.Verb)
		if event.Verb == "delete" && event.ObjectRef.Resource == "storageversionmigrations" {
			return
		}
		if !reads && (event.ObjectRef == nil || !own.Has(event.ObjectRef.Resource)) {
			t.Errorf("the observer writes: %s %s", event.Verb, event.RequestURI)
		}
	})
	migrations, err := c.Migrations().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(migrations.Items) != 1 { // that of the samples
		t.Errorf("there are %d migrations, %v", len(migrations.Items), err)
	}
}

// outdatedIsDeleted creates a migration that the trigger made before it was told to observe only. An epoch has begun
// since then.
func (c *cluster) outdatedIsDeleted(t *testing.T) {
	t.Helper()
	m := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "outdated"}}
	m.Spec.Resource = v1alpha1.GroupVersionResource{Group: widgets.Group, Version: "v1", Resource: widgets.Resource}
	m.Spec.Target = &v1alpha1.MigrationTarget{
		StorageVersionHash: "an-older-one", Epoch: ptr.To[int64](1), StorageStateUID: "of-another-state",
	}
	if _, err := c.Migrations().Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := c.Migrations().Get(ctx, m.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the outdated migration is still there, error %v", err)
	})
}
