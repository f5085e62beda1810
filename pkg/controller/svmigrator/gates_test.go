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
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestDefinitionThatChangedBefore has somebody change the definition, and the watch of the manager be late. Nothing is
// stored on the definition that was observed, also by a migration that has begun.
func TestDefinitionThatChangedBefore(t *testing.T) {
	generation := 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch request.URL.Path {
		case "/apis/example.com":
			_, _ = fmt.Fprint(w, `{"kind":"APIGroup","apiVersion":"v1","versions":[{"version":"v2"}]}`)
		case "/apis/example.com/v2":
			_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1",`+
				`"resources":[{"name":"widgets","verbs":["list","patch"]}]}`)
		case "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com":
			_, _ = fmt.Fprintf(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
				"metadata":{"uid":"widgets","generation":%d},"spec":{"group":"example.com",
				"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v2","served":true,"storage":true}]}}`, generation)
		default:
			http.NotFound(w, request)
		}
	}))
	t.Cleanup(server.Close)
	seen := agreeing{}.Observe(widgets)
	last, _ := seen.Last()
	for live, want := range map[int]error{0: storageversion.ErrRestored, 1: nil, 2: controller.ErrOutdated} {
		for _, begun := range []bool{false, true} {
			generation = live
			m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
				if live != 1 { // The change brings a version that discovery does not show yet.
					m.Spec.Resource.Version = "v3"
				}
				if begun {
					m.Status.StartTime, m.Status.Evidence = new(metav1.NewTime(noon)), &last.Evidence
					m.Status.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: v2, EncodingVersion: "example.com/v2"}
					m.Status.BaselineResourceVersion = "5"
				}
			})
			s, ctx := newStage(t, m)
			s.env.documents = readerOf(t, server)
			s.env.space = newSpace(klog.FromContext(ctx), s.env, func() {})
			s.env.followers.known.Store(widgets, &followRecord{since: noon.Add(-time.Hour)})
			r := s.run(m)
			if err := r.passGates(ctx); !errors.Is(err, want) {
				t.Errorf("generation %d, begun %t: the error is %v, want %v", live, begun, err, want)
			}
			if !begun && r.status.stored.Begun() != (want == nil) || (r.task != nil) != (want == nil) {
				t.Errorf("generation %d, begun %t: the status is %+v", live, begun, r.status.stored.Status)
			}
		}
	}
}
