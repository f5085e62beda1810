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
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testSuccessHeldBack has the definition store the old version again when all is done and checked, and only the word of
// success has not reached the API server yet.
func testSuccessHeldBack(t *testing.T, c *cluster) {
	s := c.stage(t, "laurels", "Laurel", 40)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	held, let := make(chan struct{}, 1), make(chan struct{})
	pruned := make(chan struct{})
	prune := sync.OnceFunc(func() { close(pruned) }) // A prune whose answer is late is repeated.
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		if r.Method == http.MethodGet || !strings.HasSuffix(r.URL.Path, "/status") {
			return controlplane.Verdict{}
		}
		if strings.Contains(r.URL.Path, "/customresourcedefinitions/") {
			prune()
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
		once(held)
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
	wait(t, held, "no end was written")
	s.flip(t, s.custom, "v1")
	framework.Create(t, soon, c.objects(s.custom), s.object("late"))
	close(let)
	m := s.ended(t, s.Resource, soon)
	mustFail(t, m, v1alpha1.MigrationReasonAgreementLost)
	if versions := s.storedVersions(t, s.custom); !sameStrings(versions, "v2", "v1") {
		t.Errorf("status.storedVersions is %v", versions)
	}
}

// testDefinitionChangedBefore has somebody change a definition and create a migration right after that, while the
// manager's watch of definitions is late. Until then the manager would take the version before for the current one.
func testDefinitionChangedBefore(t *testing.T, c *cluster) {
	const objects = 20
	s := c.stage(t, "pansies", "Pansy", objects)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.startProcess(t, framework.Process{Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters)})
	c.migrate(t, "before", s.WithVersion(""))
	mustSucceed(t, c.ended(t, "before", soon))

	watched, read := make(chan struct{}, 1), make(chan struct{}, 1)
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		name, definitions := strings.CutPrefix(r.URL.Path, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
		switch {
		case definitions && r.URL.Query().Has("watch"):
			once(watched)
			return controlplane.Verdict{Cut: controlplane.CutBefore}
		case definitions && name == "/"+s.String():
			once(read)
		}
		return controlplane.Verdict{}
	})
	gate.CutConnections()
	wait(t, watched, "the manager does not watch definitions")
	s.flip(t, s.custom, "v1")
	judge := c.judge(t, s.GroupResource)
	c.migrate(t, "after", s.WithVersion(""))
	framework.Eventually(t, soon, func(ctx context.Context) error {
		if len(read) > 0 {
			return nil
		}
		m, err := c.fetch(ctx, "after")
		if err == nil && m.Status.StartTime == nil {
			err = errors.New("the manager does nothing about the migration")
		}
		return err
	})
	gate.Intercept(nil)
	m := c.ended(t, "after", soon)
	mustSucceed(t, m)
	rewroteAll(t, m, objects)
	judge.stored(t, s.encoding("v1"))
}

// once sends to a channel that has room for one.
func once(happened chan<- struct{}) {
	select {
	case happened <- struct{}{}:
	default:
	}
}

func wait(t *testing.T, happened <-chan struct{}, otherwise string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(soon):
		t.Fatal(otherwise)
	}
}
