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

package synthetic

import (
	"net/http/httptest"
	"runtime"
	"testing"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// TestMemory migrates many objects, and wants the migrator to need no more memory for the last ones than for the first.
func TestMemory(t *testing.T) {
	const objects, early, most = 12_000, 3_000, 2 << 20
	server := &Server{Objects: objects}
	endpoint := httptest.NewServer(server)
	defer endpoint.Close()
	var first, last uint64
	counts, err := Migrate(t.Context(), endpoint.URL, func(done int64) {
		if last = heap(); done <= early {
			first = last
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	const refused = objects / refusedEach
	if counts[sweep.Denied] != refused || counts[sweep.Rewritten] != objects-refused {
		t.Errorf("the outcomes are %v", counts)
	}
	if got := server.Patches.Load(); got != objects-refused {
		t.Errorf("there were %d rewrites", got)
	}
	t.Logf("the heap had %d bytes after %d objects, and %d after %d", first, early, last, objects)
	if last > first+most {
		t.Errorf("the heap grew from %d bytes after %d objects to %d after %d", first, early, last, objects)
	}
}

// heap is what is in use.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
