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

package svmtrigger

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testUnread takes from a manager the permission to read what it learns of changes from. The definition changes
// meanwhile.
func testUnread(t *testing.T, c *cluster) {
	const poll = 10 * time.Second
	gears := custom("unread.example.com", "gears", "Gear")
	c.define(t, gears)
	c.create(t, gears, "one")
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Bool
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		lists := strings.HasSuffix(r.URL.Path, "/customresourcedefinitions") || strings.HasSuffix(r.URL.Path, "/leases")
		if refused.Load() && r.Method == http.MethodGet && lists {
			return controlplane.Verdict{Status: http.StatusForbidden}
		}
		return controlplane.Verdict{}
	})
	startJudge(t, c, gears)
	startMigrator(t, c)
	c.startManagerAt(t, gate.Config(framework.ManagerUser, framework.Masters), "unread",
		"--poll-interval="+poll.String(), "--auto-migrate=configmaps,"+gears.String())
	of := []resource{gears, configMaps}
	says := func(status metav1.ConditionStatus, reason string) func() error {
		return func() error {
			var errs []error
			for _, r := range of {
				errs = append(errs, c.says(r, v1alpha1.StorageStateAgreed, status, reason),
					c.says(r, v1alpha1.StorageStateSafeToRemoveOldVersions, status))
			}
			return errors.Join(errs...)
		}
	}
	framework.EventuallySeen(t, soon, says(metav1.ConditionTrue, v1alpha1.StateReasonServersAgree))

	before, began := c.allStates(), c.mark(t)
	refused.Store(true)
	gate.CutConnections() // The API server lets a watch go on that it would refuse by now, for ten minutes.
	c.flip(t, gears, "v2")
	out := says(metav1.ConditionFalse, v1alpha1.StateReasonDiscoveryFailed)
	framework.EventuallySeen(t, soon, out)
	for _, r := range of {
		agreed := meta.FindStatusCondition(c.state(r.String()).Status.Conditions, v1alpha1.StorageStateAgreed)
		t.Logf("%s: %s", r, agreed.Message)
	}
	framework.During(t, 2*poll, func(context.Context) error { return out() })

	refused.Store(false)
	framework.EventuallySeen(t, soon, func() error {
		return errors.Join(c.migrated(gears, "v2"), c.migrated(configMaps, "v1"))
	})
	if err := errors.Join(c.migrationCount(gears, began, 1), c.migrationCount(configMaps, began, 0)); err != nil {
		t.Error(err)
	}
	if was, is := before[configMaps.String()], c.state(configMaps.String()); was.Status.Epoch != is.Status.Epoch {
		t.Errorf("no server changed, and an epoch began: before %s, now %s", words(was), words(is))
	}
}
