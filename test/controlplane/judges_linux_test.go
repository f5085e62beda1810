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

package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// TestOneServer tries what needs one server. The last of it kills the server.
func TestOneServer(t *testing.T) {
	t.Parallel()
	cp := Start(t, Config{Servers: []Server{{AllowAll: true}}})
	t.Run("continue tokens expire", func(t *testing.T) { testContinueTokensExpire(t, cp) })
	t.Run("what cannot be read is there", func(t *testing.T) { testWhatCannotBeReadIsThere(t, cp) })
	t.Run("children end with their program", func(t *testing.T) { testChildrenEndWithTheirProgram(t, cp) })
	t.Run("what an interceptor does", func(t *testing.T) { testWhatAnInterceptorDoes(t, cp) })
}

// testWhatCannotBeReadIsThere wants a value of an unknown form to be an object of an unknown encoding: a judge that
// finds nothing stale must have seen everything.
func testWhatCannotBeReadIsThere(t *testing.T, cp *ControlPlane) {
	for _, name := range []string{"one", "two"} {
		_, err := cp.Etcd().Client().Put(t.Context(), "/registry/sealed.example.com/oxen/default/"+name, "\xd9\xd9\xf7\xa1")
		must(t, err)
	}
	objects, err := cp.Stored(t.Context(), schema.GroupResource{Group: "sealed.example.com", Resource: "oxen"})
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 2 {
		t.Fatalf("found %d objects, want 2: %v", len(objects), objects)
	}
	for i, name := range []string{"one", "two"} {
		if o := objects[i]; o.Encoding != "" || o.Namespace != "default" || o.Name != name || o.ContentHash != "" {
			t.Errorf(
				"object %d is %q/%q in encoding %q with hash %q, want default/%s in an unknown one",
				i,
				o.Namespace,
				o.Name,
				o.Encoding,
				o.ContentHash,
				name,
			)
		}
	}
}

// TestHalfALineOfAudit is the log of a server that was killed while it wrote, and started again.
func TestHalfALineOfAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"auditID":"a"}` + "\n" + `{"auditID":"b","lev`)
	for range 2 {
		if err := completeLines(path); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"auditID":"c"}` + "\n" + `{"auditID":"d"`)

	all := RequestFilter{}.maySelect()
	var seen []string
	if err := readAudit(path, all, func(event *auditv1.Event) { seen = append(seen, string(event.AuditID)) }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, ""); got != "ac" {
		t.Errorf("read the events %q, want those that are whole: ac", got)
	}
	write("}\n" + `{"auditID":}` + "\n")
	if err := readAudit(path, all, func(*auditv1.Event) {}); err == nil {
		t.Error("a whole line that is no event must be an error")
	}
}

// testChildrenEndWithTheirProgram is a program that starts another and ends by itself.
func testChildrenEndWithTheirProgram(t *testing.T, cp *ControlPlane) {
	p := cp.Run(t, "parent", "/bin/sh", "-c", "sleep 1000 & echo child $!")
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(p.Log(), "\nchild ")
	if !found {
		t.Fatalf("the log does not name the child:\n%s", p.Log())
	}
	child, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child ends", func(context.Context) error {
		if state, err := processState(child); err == nil && state != 'Z' {
			return fmt.Errorf("it is in state %c", state)
		}
		return nil
	})
}
