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
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// fakeServer answers as an API server does: documents, and lists and watches of collections.
type fakeServer struct {
	*httptest.Server

	mu          sync.Mutex
	requests    map[string]int // by path, with ?watch for watches
	underWay    int            // requests that are to be answered
	documents   map[string]string
	failing     map[string]int // status codes by prefix of the path
	collections map[string]*collection
	moved       chan struct{} // closed at every change of a collection
	started     time.Time     // of the process, shown by metrics
}

// collection is a resource in a fakeServer. Paths of collections are complete, namespace included.
type collection struct {
	apiVersion, kind string
	streams          bool   // whether lists can be streamed
	broken           bool   // whether watches break as soon as they began
	silent           bool   // whether watches show nothing
	bookmarks        bool   // whether a watch that shows nothing sends bookmarks
	onTheWay         func() // called when a list is made, and before it is sent, if not nil
	version          int
	objects          map[string]object
	log              []event
	compacted        int // events up to this version are forgotten
}

type object = map[string]any

type event struct {
	version int
	kind    string
	object  object
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	s := &fakeServer{
		requests: map[string]int{}, documents: map[string]string{}, failing: map[string]int{},
		collections: map[string]*collection{}, moved: make(chan struct{}),
	}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *fakeServer) config() *rest.Config {
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// reader reads documents of the server.
func (s *fakeServer) reader(t *testing.T) documents.Reader {
	t.Helper()
	c, err := newClients(s.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.closeIdleConnections)
	return c.host
}

func (s *fakeServer) address() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		panic(err)
	}
	return u.Host
}

// collect adds a collection.
func (s *fakeServer) collect(path, apiVersion, kind string) *collection {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &collection{apiVersion: apiVersion, kind: kind, objects: map[string]object{}}
	s.collections[path] = c
	return c
}

// change changes collections, documents or failures, and wakes watches.
func (s *fakeServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.moved)
	s.moved = make(chan struct{})
}

// put is called in change. It creates or updates an object.
func (c *collection) put(name string, o object) {
	kind := "MODIFIED"
	if _, exists := c.objects[name]; !exists {
		kind = "ADDED"
	}
	c.version++
	o = maps.Clone(o)
	metadata := object{"name": name, "uid": "uid-" + name, "resourceVersion": strconv.Itoa(c.version), "generation": 1}
	if more, ok := o["metadata"].(object); ok {
		maps.Copy(metadata, more)
	}
	o["metadata"], o["apiVersion"], o["kind"] = metadata, c.apiVersion, c.kind
	c.objects[name] = o
	c.log = append(c.log, event{c.version, kind, o})
}

// remove is called in change.
func (c *collection) remove(name string) {
	c.version++
	last := maps.Clone(c.objects[name])
	last["metadata"] = maps.Clone(last["metadata"].(object))
	last["metadata"].(object)["resourceVersion"] = strconv.Itoa(c.version)
	c.log = append(c.log, event{c.version, "DELETED", last})
	delete(c.objects, name)
}

func (s *fakeServer) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[path]
}

// reset forgets what was counted, and returns it.
func (s *fakeServer) reset() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counted := s.requests
	s.requests = map[string]int{}
	return counted
}

// These are codes in fakeServer.failing. With noAnswer the server keeps the connection open, and sends nothing. With
// cutOff it breaks off in the middle of an answer. With lateAnswer it refuses after a while, and with comeBack at once.
const (
	noAnswer   = -1
	cutOff     = -2
	lateAnswer = -3
	comeBack   = -4
)

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	watching := query.Get("watch") == "true"
	s.mu.Lock()
	counted := r.URL.Path
	if watching {
		counted += "?watch"
	}
	s.requests[counted]++
	code := 0
	for prefix, c := range s.failing {
		if strings.HasPrefix(r.URL.Path, prefix) {
			code = c
		}
	}
	document, isDocument := s.documents[r.URL.Path]
	c := s.collections[r.URL.Path]
	started := s.started
	if !watching && code != noAnswer {
		s.underWay++
		defer s.answered()
	}
	s.mu.Unlock()
	switch {
	case code == noAnswer:
		<-r.Context().Done()
	case code == cutOff:
		fmt.Fprint(w, "the first part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case code == lateAnswer:
		time.Sleep(requestTimeout + time.Second)
		fail(w, http.StatusTooManyRequests, "")
	case code == comeBack:
		w.Header().Set("Retry-After", "8")
		fail(w, http.StatusTooManyRequests, "")
	case code != 0:
		fail(w, code, "")
	case isDocument:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, document)
	case r.URL.Path == "/metrics":
		writeMetrics(w, started)
	case c == nil:
		http.NotFound(w, r)
	case watching:
		s.watch(w, r, c, query)
	default:
		s.list(w, c, query)
	}
}

func (s *fakeServer) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay--
}

func (s *fakeServer) isAnswering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay > 0
}

func failure(code int, reason metav1.StatusReason) object {
	return object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
		"message": http.StatusText(code)}
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	answerWith(w, code, failure(code, reason))
}

func answerWith(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(o); err != nil {
		panic(http.ErrAbortHandler) // The client has gone.
	}
}

func (s *fakeServer) list(w http.ResponseWriter, c *collection, query url.Values) {
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(c.objects))
	begin, _ := strconv.Atoi(query.Get("continue")) // empty is zero
	end := len(names)
	metadata := object{"resourceVersion": strconv.Itoa(c.version)}
	if limit, err := strconv.Atoi(query.Get("limit")); err == nil && begin+limit < end {
		end = begin + limit
		metadata["continue"] = strconv.Itoa(end)
	}
	items := []object{}
	for _, name := range names[begin:end] {
		items = append(items, c.objects[name])
	}
	onTheWay := c.onTheWay
	s.mu.Unlock()
	if onTheWay != nil {
		onTheWay()
	}
	answerWith(w, http.StatusOK, object{
		"kind": c.kind + "List", "apiVersion": c.apiVersion, "metadata": metadata, "items": items})
}

func (s *fakeServer) watch(w http.ResponseWriter, r *http.Request, c *collection, query url.Values) {
	initial := query.Get("sendInitialEvents") == "true"
	if initial && !c.streams {
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	send := func(kind string, o object) {
		if err := json.NewEncoder(w).Encode(object{"type": kind, "object": o}); err != nil {
			panic(http.ErrAbortHandler) // The client has gone.
		}
	}
	w.Header().Set("Content-Type", "application/json")
	from, _ := strconv.Atoi(query.Get("resourceVersion")) // empty is zero
	for {
		s.mu.Lock()
		moved := s.moved
		var news []event
		switch {
		case initial:
			for _, o := range c.objects {
				news = append(news, event{c.version, "ADDED", o})
			}
			metadata := object{
				"resourceVersion": strconv.Itoa(c.version), "annotations": object{metav1.InitialEventsAnnotationKey: "true"}}
			news = append(news, event{c.version, "BOOKMARK", object{
				"kind": c.kind, "apiVersion": c.apiVersion, "metadata": metadata}})
		case c.broken:
			s.mu.Unlock()
			send("ERROR", failure(http.StatusInternalServerError, metav1.StatusReasonInternalError))
			return
		case c.silent:
			s.mu.Unlock()
			select {
			case <-r.Context().Done():
				return
			case <-moved:
				if c.bookmarks {
					send("BOOKMARK", object{"kind": c.kind, "apiVersion": c.apiVersion,
						"metadata": object{"resourceVersion": strconv.Itoa(from)}})
					w.(http.Flusher).Flush()
				}
				continue
			}
		case from < c.compacted:
			s.mu.Unlock()
			send("ERROR", failure(http.StatusGone, metav1.StatusReasonExpired))
			return
		default:
			news = slices.DeleteFunc(slices.Clone(c.log), func(e event) bool { return e.version <= from })
		}
		from, initial = c.version, false
		s.mu.Unlock()
		for _, e := range news {
			send(e.kind, e.object)
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-moved:
		}
	}
}

// soon is how long anything may take on a busy machine.
const soon = 5 * time.Minute

// eventually waits until check has nothing to complain about. Some checks let 100 ms of a fake clock go by, and what
// they wait for happens every few minutes.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	var last error
	try := func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	}
	if wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, soon, true, try) != nil {
		t.Fatalf("still: %v", last)
	}
}
