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
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestInTreeMigrationThatRuns(t *testing.T) {
	const (
		group = `{"kind": "APIGroup", "versions": [{"version": "v1beta1"}, {"version": "v1"}],
			"preferredVersion": {"version": "v1"}}`
		kind   = `{"kind": "StorageVersionMigrationList", "items": [`
		path   = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"
		others = `{"metadata": {"name": "pending"}, "spec": {"resource": {"group": "a", "resource": "widgets"}}},
			{"metadata": {"name": "of-another"}, "spec": {"resource": {"group": "b", "resource": "widgets"}},
				"status": {"conditions": [{"type": "Running", "status": "True"}]}},
			{"metadata": {"name": "ended"}, "spec": {"resource": {"group": "a", "resource": "widgets"}},
				"status": {"conditions": [{"type": "Running", "status": "True"}, {"type": "Failed", "status": "True"}]}}`
		running = `{"metadata": {"name": "running"},
				"spec": {"resource": {"group": "a", "version": "v1", "resource": "widgets"}},
				"status": {"conditions": [{"type": "Running", "status": "True"}, {"type": "Failed", "status": "False"}]}}`
	)
	for name, test := range map[string]struct {
		group, list string
		code        int
		want        string
	}{
		"one runs":         {group: group, list: kind + others + `, ` + running + `]}`, want: "running"},
		"none runs":        {group: group, list: kind + others + `]}`},
		"nobody serves it": {},
		"not allowed":      {group: group, code: http.StatusForbidden},
		"cannot be read":   {group: group, code: http.StatusInternalServerError},
		"no answer":        {group: group, code: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case request.URL.Path == "/apis/storagemigration.k8s.io" && test.group != "":
					_, _ = w.Write([]byte(test.group))
				case request.URL.Path == path && test.code == 0:
					_, _ = w.Write([]byte(test.list))
				case request.URL.Path == path:
					w.WriteHeader(test.code)
				default:
					http.NotFound(w, request)
				}
			}))
			t.Cleanup(server.Close)
			c := &environment{documents: readerOf(t, server)}
			if got := c.runningInTree(t.Context(), schema.GroupResource{Group: "a", Resource: "widgets"}); got != test.want {
				t.Errorf("%q runs, want %q", got, test.want)
			}
		})
	}
}
