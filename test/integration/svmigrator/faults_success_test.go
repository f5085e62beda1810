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
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testSuccessHeldBack has the definition store the old version again when all is done and checked, and only the word of
// success has not reached the API server yet.
func testSuccessHeldBack(t *testing.T, c *cluster) {
	s := c.stage(t, "laurels", "Laurel", 300)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	held, let := make(chan struct{}, 1), make(chan struct{})
	pruned := make(chan struct{})
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		if r.Method == http.MethodGet || !strings.HasSuffix(r.URL.Path, "/status") {
			return controlplane.Verdict{}
		}
		if strings.Contains(r.URL.Path, "/customresourcedefinitions/") {
			close(pruned) // once: nothing is pruned twice
			return controlplane.Verdict{}
		}
		select {
		case <-let:
			return controlplane.Verdict{}
		default:
		}
		select {
		case <-pruned:
		default:
			return controlplane.Verdict{} // progress
		}
		select {
		case held <- struct{}{}:
		default:
		}
		return controlplane.Verdict{Cut: controlplane.CutBefore}
	})
	c.startProcess(
		t,
		framework.Process{
			Name:   "manager",
			Config: gate.Config(framework.ManagerUser, framework.Masters),
			Args:   steadily(400),
		},
	)
	s.migrate(t)
	select {
	case <-held:
	case <-time.After(soon):
		t.Fatal("no end was written")
	}
	s.flip(t, s.custom, "v1")
	late := s.object("late")
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := c.objects(s.custom).Create(ctx, late, metav1.CreateOptions{})
		return err
	})
	close(let)
	m := s.ended(t, s.Resource, soon)
	mustFail(t, m, v1alpha1.MigrationReasonAgreementLost)
	if versions := s.storedVersions(t, s.custom); !sameStrings(versions, "v2", "v1") {
		t.Errorf("status.storedVersions is %v", versions)
	}
}
