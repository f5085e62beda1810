//go:build !race

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

package observer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
)

// The race detector makes decoding more than ten times slower, so this file is for tests without it.
const (
	manyDefinitions = 1000
	definitionSize  = 100_000
)

// definitionServer serves many large definitions without having them in memory.
type definitionServer struct {
	streams bool
	padding string
}

func (s *definitionServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path != definitionsPath:
		http.NotFound(w, r)
	case query.Get("sendInitialEvents") == "true" && !s.streams:
		fail(w, http.StatusUnprocessableEntity, "Invalid")
	case query.Get("sendInitialEvents") == "true":
		for i := range manyDefinitions {
			fmt.Fprint(w, `{"type":"ADDED","object":`)
			s.write(w, i)
			fmt.Fprint(w, "}\n")
		}
		fmt.Fprint(w, `{"type":"BOOKMARK","object":{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
			"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case query.Get("watch") == "true":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		begin, _ := strconv.Atoi(query.Get("continue")) // empty is zero
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil {
			limit = manyDefinitions
		}
		end, next := min(begin+limit, manyDefinitions), ""
		if end < manyDefinitions {
			next = strconv.Itoa(end)
		}
		fmt.Fprintf(w, `{"kind":"CustomResourceDefinitionList","apiVersion":"apiextensions.k8s.io/v1",
			"metadata":{"resourceVersion":"1","continue":%q},"items":[`, next)
		for i := begin; i < end; i++ {
			if i > begin {
				fmt.Fprint(w, ",")
			}
			s.write(w, i)
		}
		fmt.Fprint(w, "]}")
	}
}

// write writes a definition as it is found in clusters: most of it is schema, some of it annotations and managed
// fields.
func (s *definitionServer) write(w io.Writer, i int) {
	fmt.Fprintf(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{
		"name":"widgets.group-%[1]d.example.com","uid":"00000000-0000-0000-0000-%012[1]d","resourceVersion":"%[1]d",
		"generation":1,"annotations":{"last-applied":%[2]q},
		"managedFields":[{"manager":"installer","fieldsV1":{"f:spec":{"f:description":%[2]q}}}]},
		"spec":{"group":"group-%[1]d.example.com","names":{"plural":"widgets","kind":"Widget"},"versions":[
		{"name":"v1alpha1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","description":%[2]q}}},
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","description":%[2]q}}}]},
		"status":{"storedVersions":["v1alpha1","v1"],"conditions":[{"type":"Established","status":"True"}]}}`, i, s.padding)
}

// TestManyLargeDefinitionsFit holds the heap to what a process of 100 MB has room for. The definitions have 100 MB.
func TestManyLargeDefinitionsFit(t *testing.T) {
	const (
		limitOfGrowth = 8 << 20
		limitOfPeak   = 80 << 20 // while they are read, garbage and the server's part included
	)
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // The environment may have another one.
	for name, streams := range map[string]bool{"streamed list": true, "paged list": false} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(&definitionServer{streams: streams, padding: strings.Repeat("x", definitionSize/4)})
			t.Cleanup(server.Close)
			t.Cleanup(server.CloseClientConnections)
			o, err := New(&rest.Config{Host: server.URL}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, ctx := ktesting.NewTestContext(t)
			ctx, cancel := context.WithCancel(ctx)
			var running sync.WaitGroup
			before, peak := heap(), uint64(0)
			running.Go(func() { o.shared.followDefinitions(ctx, o.clients.definitions) })
			all := func(context.Context) (bool, error) {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapInuse)
				return len(o.Resources()) == manyDefinitions, nil
			}
			err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 5*time.Minute, true, all)
			if err != nil {
				t.Fatalf("%d definitions were seen: %v", len(o.Resources()), err)
			}
			after := heap()
			t.Logf("for %d definitions the heap grew from %d kB to %d kB, with a peak of %d kB", manyDefinitions,
				before>>10, after>>10, peak>>10)
			if after > before+limitOfGrowth || peak > limitOfPeak {
				t.Errorf("that is more than %d kB of growth, or %d kB at the peak", limitOfGrowth>>10, limitOfPeak>>10)
			}
			cancel()
			running.Wait()
			o.clients.closeIdleConnections()
			runtime.KeepAlive(o)
		})
	}
}

// heap is how much is allocated when garbage is collected.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
