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

// Package synthetic is an API server with as many objects as one likes, which are nowhere: it makes up each one when it
// is asked for it. It knows the requests with which the migrator rewrites, and counts them.
package synthetic

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	perNamespace = 100
	// refusedEach is that one of so many objects is refused for good.
	refusedEach = 1000
	// chunk is the default of the manager.
	chunk = 500
	// workers is how many requests are out at a time.
	workers = 16
)

var resource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// Server has objects with the numbers 0 to Objects-1.
type Server struct {
	Objects int
	// Requests counts all requests, and Patches those that rewrite.
	Requests, Patches atomic.Int64
}

// ServeHTTP answers lists, gets and patches.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Requests.Add(1)
	name, isObject := strings.CutPrefix(r.URL.Path, "/apis/example.com/v1/namespaces/")
	query := r.URL.Query()
	if !isObject {
		from, _ := strconv.Atoi(query.Get("continue"))
		limit, _ := strconv.Atoi(query.Get("limit"))
		write(w, s.list(from, limit))
		return
	}
	number, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		http.NotFound(w, r)
		return
	}
	whole := !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
	switch o := object(number, r.Method == http.MethodPatch && !query.Has("dryRun")); {
	case r.Method == http.MethodPatch && number%refusedEach == 1:
		refuse(w, o)
	case whole:
		o.TypeMeta = metav1.TypeMeta{APIVersion: resource.GroupVersion().String(), Kind: "Widget"}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(o)
	default:
		if r.Method == http.MethodPatch {
			s.Patches.Add(1)
		}
		write(w, o)
	}
}

func (s *Server) list(from, limit int) *metav1.PartialObjectMetadataList {
	to := min(from+limit, s.Objects)
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
	list.ResourceVersion = "2"
	for n := from; n < to; n++ {
		list.Items = append(list.Items, *object(n, false))
	}
	if to < s.Objects {
		list.Continue, list.RemainingItemCount = strconv.Itoa(to), ptr.To(int64(s.Objects-to))
	}
	return list
}

// object makes an object up. A rewrite gives it a new resource version.
func object(number int, rewritten bool) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("namespace-%06d", number/perNamespace), Name: fmt.Sprintf("object-%08d", number),
		UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", number)), ResourceVersion: "1", Generation: 1,
		Labels: map[string]string{"app.kubernetes.io/name": "widget", "app.kubernetes.io/part-of": "scale"},
	}}
	if rewritten {
		o.ResourceVersion = strconv.Itoa(number + 10)
	}
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
	return o
}

var serializer = protobuf.NewSerializer(runtime.NewScheme(), runtime.NewScheme())

func write(w http.ResponseWriter, object runtime.Object) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = serializer.Encode(object, w) // The client notices what it does not get.
}

// refuse answers as an API server does for an object that is not valid any more.
func refuse(w http.ResponseWriter, o *metav1.PartialObjectMetadata) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(http.StatusUnprocessableEntity)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		Message: "widgets \"" + o.Name + "\" is invalid: spec.size: Required value",
		Details: &metav1.StatusDetails{Name: o.Name, Kind: resource.Resource},
	})
}

// Migrate rewrites all objects of a server as the manager does, without a bound on the pace, and calls progress now and
// then with the number of objects that have outcomes. It returns how many have which outcome.
func Migrate(ctx context.Context, url string, progress func(done int64)) (sweep.Counts, error) {
	ctx = klog.NewContext(ctx, klog.Logger{}) // It would tell of the refused ones.
	pace := pacer.New(pacer.Options{MaxConcurrent: workers, Unpaced: true})
	config := &rest.Config{Host: url}
	documents.BoundAnswers(config)
	engine, err := rewrite.NewEngine(config, pace, clock.RealClock{}, chunk, 0)
	if err != nil {
		return sweep.Counts{}, err
	}
	m := &migration{progress: progress}
	task := rewrite.NewTask(storageversion.Custom, sweep.Position{})
	err = engine.Run(ctx, task, rewrite.Resource{GroupVersionResource: resource, Class: storageversion.Custom}, m)
	return m.last.Counts, err
}

// migration is the owner of a run. It keeps the last position, as the status of a migration does.
type migration struct {
	progress func(done int64)
	last     sweep.Position
}

func (m *migration) SavePosition(_ context.Context, position sweep.Position) error {
	m.last = position
	m.progress(position.Counts.Processed())
	return nil
}

func (m *migration) ObjectDone(*sweep.Object, sweep.Outcome)     {}
func (m *migration) ReportPhase(context.Context, rewrite.Report) {}
func (m *migration) MustYield() bool                             { return false }

// Serve answers at an address until the context ends.
func Serve(ctx context.Context, address string, objects int) error {
	server := &http.Server{Addr: address, Handler: &Server{Objects: objects}, ReadHeaderTimeout: time.Minute}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	return server.ListenAndServe()
}
