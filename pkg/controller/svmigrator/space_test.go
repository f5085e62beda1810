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
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// toldSizes is an Observer whose servers answer as said.
type toldSizes struct {
	Observer
	servers []*httptest.Server
	// inTurn means that each time another one of the servers is asked.
	inTurn bool
	asked  int
	// unasked is why one more server cannot be asked.
	unasked error
}

// reply is what a server answers: a status code and metric families.
type reply struct {
	code     int
	families []*dto.MetricFamily
}

func tell(t *testing.T, answers ...reply) *toldSizes {
	t.Helper()
	told := &toldSizes{}
	for _, answer := range answers {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			if got := request.URL.Query()["name[]"]; !slices.Equal(got, []string{objectsMetric, bytesMetric, sizeMetric}) {
				t.Errorf("asked for the metrics %q", got)
			}
			w.WriteHeader(answer.code)
			for _, family := range answer.families {
				if _, err := protodelim.MarshalTo(w, family); err != nil {
					t.Error(err)
				}
			}
		}))
		t.Cleanup(server.Close)
		told.servers = append(told.servers, server)
	}
	return told
}

func (o *toldSizes) AskEach(ctx context.Context, ask func(context.Context, documents.Reader) error) error {
	var all error
	for i, server := range o.servers {
		if o.inTurn && i != o.asked%len(o.servers) {
			continue
		}
		config := &rest.Config{Host: server.URL}
		config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		client, err := rest.UnversionedRESTClientFor(config)
		if err != nil {
			return err
		}
		all = errors.Join(all, ask(ctx, documents.Reader{Client: client, Timeout: time.Minute}))
	}
	o.asked++
	return errors.Join(all, o.unasked)
}

// family returns a metric family as an API server sends it, with a sample for each etcd.
func family(name string, bytes ...float64) *dto.MetricFamily {
	f := &dto.MetricFamily{Name: &name, Type: dto.MetricType_GAUGE.Enum()}
	for i := range bytes {
		f.Metric = append(f.Metric, &dto.Metric{
			Label: []*dto.LabelPair{{Name: ptr.To("storage_cluster_id"), Value: ptr.To(fmt.Sprintf("etcd-%d", i))}},
			Gauge: &dto.Gauge{Value: &bytes[i]},
		})
	}
	return f
}

// TestFirstReadings has an API server that reports the size of another member of etcd each time. The file of the first
// one is smaller than that of the second by more than a file may grow. At first no server answers. Then somebody
// suspends the first migration during its readings.
func TestFirstReadings(t *testing.T) {
	var members []reply
	for _, mebibytes := range []float64{8, 10, 8} {
		members = append(members, reply{http.StatusOK, []*dto.MetricFamily{family(sizeMetric, mebibytes*mebibyte)}})
	}
	told := tell(t, members...)
	told.inTurn = true
	e := &environment{observer: told, clock: testingclock.NewFakeClock(time.Now())}
	e.options.MaxStorageGrowth = mebibyte
	s := newSpace(klog.Background(), e, func() {})
	answering := told.servers
	told.servers = tell(t, reply{code: http.StatusServiceUnavailable}).servers
	if s.mayBegin(t.Context()) {
		t.Error("no server answers, and migrations begin")
	}
	told.servers, told.asked = answering, 0
	s.tryResume(t.Context()) // This reads the first member only.
	suspended, stop := context.WithCancel(t.Context())
	stop()
	s.mayBegin(suspended) // The next run has to measure.
	if !s.mayBegin(t.Context()) {
		t.Errorf("nothing was rewritten yet, and migrations pause: %s", s.paused().Message)
	}
	want := databaseFile{first: 10 * mebibyte, last: 10 * mebibyte, limit: 11 * mebibyte}
	if file := s.growth.file; file != want {
		t.Errorf("the sizes of the file are %+v, want %+v", file, want)
	}
	told.servers = tell(t, reply{http.StatusOK, []*dto.MetricFamily{family(sizeMetric, 11*mebibyte)}}).servers
	if s.read(t.Context()); s.paused() == nil {
		t.Error("the file has grown by all that it may, and migrations go on")
	}
}

// TestSlowReadings has API servers that never report a size. They are asked less and less often.
func TestSlowReadings(t *testing.T) {
	told := tell(t, reply{code: http.StatusServiceUnavailable})
	clk := testingclock.NewFakeClock(time.Now())
	e := &environment{observer: told, clock: clk}
	e.options.MaxStorageGrowth = mebibyte
	s := newSpace(klog.Background(), e, func() {})
	s.mayBegin(t.Context())
	told.asked = 0
	for range time.Hour / spaceRetry {
		s.tryResume(t.Context())
		clk.Step(spaceRetry)
	}
	if s.paused() == nil || told.asked < 50 || told.asked > 70 {
		t.Errorf("the servers were asked %d times in an hour, and the pause is %v", told.asked, s.paused())
	}
}

// oneAtATime counts the readings that begin while another one is under way.
type oneAtATime struct {
	toldSizes
	underWay, overlaps atomic.Int32
}

func (o *oneAtATime) AskEach(ctx context.Context, ask func(context.Context, documents.Reader) error) error {
	if o.underWay.Add(1) > 1 {
		o.overlaps.Add(1)
	}
	defer o.underWay.Add(-1)
	time.Sleep(time.Millisecond)
	return o.toldSizes.AskEach(ctx, ask)
}

// TestOneReadingAtATime has runs and the loop read at the same time.
func TestOneReadingAtATime(t *testing.T) {
	o := &oneAtATime{toldSizes: *tell(t, reply{code: http.StatusServiceUnavailable})}
	s := newSpace(klog.Background(), &environment{observer: o, clock: clock.RealClock{}}, func() {})
	var readings sync.WaitGroup
	for range 4 {
		readings.Go(func() { s.read(t.Context()) })
	}
	if readings.Wait(); o.overlaps.Load() > 0 {
		t.Errorf("%d readings began during another one", o.overlaps.Load())
	}
}

func TestSizesThatServersTell(t *testing.T) {
	ofWidgets := func(name string, value float64) *dto.MetricFamily {
		return &dto.MetricFamily{Name: &name, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{
			Label: []*dto.LabelPair{
				{Name: ptr.To("group"), Value: &widgets.Group}, {Name: ptr.To("resource"), Value: &widgets.Resource},
			},
			Gauge: &dto.Gauge{Value: &value}}}}
	}
	objects := func(count, bytes float64) reply {
		return reply{http.StatusOK, []*dto.MetricFamily{
			ofWidgets(objectsMetric, count), ofWidgets(bytesMetric, bytes), family(sizeMetric, 5),
		}}
	}
	other, failing := family("another_metric", 7), reply{code: http.StatusServiceUnavailable}
	size := func(bytes ...float64) reply {
		return reply{http.StatusOK, []*dto.MetricFamily{other, family(sizeMetric, bytes...)}}
	}
	without, forbidden := reply{http.StatusOK, []*dto.MetricFamily{other}}, reply{code: http.StatusForbidden}
	away := errors.New("a server is not ready")
	for name, test := range map[string]struct {
		answers []reply
		unasked error
		before  databaseFile
		paused  bool // by a reading that took long
		pauses  bool
		file    int64
		widget  objectSizes
	}{
		"the largest counts":            {answers: []reply{size(1.5e+06), size(2e+06), size(30)}, file: 2_000_000},
		"any of several files may grow": {answers: []reply{size(700), size(900, 30)}, file: 930},
		"objects have sizes, of which the largest counts": {
			answers: []reply{objects(3, 300), objects(2, 300), objects(2, -1)},
			file:    5, widget: objectSizes{average: 150, all: 300},
		},
		"no server knows how large objects are": {
			answers: []reply{objects(3, -1), objects(0, 0)}, file: 5,
		},
		"one server tells":         {answers: []reply{failing, size(5)}, file: 5},
		"no server answers":        {answers: []reply{failing}, pauses: true},
		"none answers once more":   {answers: []reply{failing}, paused: true, pauses: true},
		"nobody may ask":           {answers: []reply{forbidden, forbidden}},
		"nobody may ask any more":  {answers: []reply{forbidden}, paused: true},
		"forbidden, and no answer": {answers: []reply{forbidden, failing}, pauses: true},
		"no metric, and no answer": {answers: []reply{without, failing}, pauses: true},
		"there is no such metric":  {answers: []reply{without}},
		"no metric, and a server that cannot be asked": {
			answers: []reply{without}, unasked: away, pauses: true,
		},
		"forbidden, and a server that cannot be asked": {
			answers: []reply{forbidden}, unasked: away, pauses: true,
		},
		"one tells, and one cannot be asked": {
			answers: []reply{size(5)}, unasked: away, file: 5,
		},
		"the metric is missing for once": {
			answers: []reply{without}, before: databaseFile{last: 3}, pauses: true, file: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			told := tell(t, test.answers...)
			told.unasked = test.unasked
			c := &environment{observer: told, clock: testingclock.NewFakeClock(time.Now())}
			c.options.MaxStorageGrowth = mebibyte
			s := newSpace(klog.Background(), c, func() {})
			s.growth.file = test.before
			if test.paused {
				for s.pause == nil {
					s.rewritten(widgets)
				}
			}
			s.read(t.Context())
			if (s.pause != nil) != test.pauses {
				t.Errorf("the pause is %+v", s.pause)
			}
			if kept := s.pause; kept != nil {
				if s.read(t.Context()); s.pause != kept {
					t.Errorf("there is another pause, %+v, about which all migrations would be written", s.pause)
				}
			}
			if got := s.growth.file.last; got != test.file {
				t.Errorf("the size is %d, want %d", got, test.file)
			}
			if got := s.growth.objects[widgets]; got != test.widget {
				t.Errorf("widgets have the sizes %+v, want %+v", got, test.widget)
			}
		})
	}
}

// TestCompactionByOthers has an API server that answers as since Kubernetes 1.34 when etcd was compacted by itself or a
// person: lists of everything at an old revision come from a cache, and still succeed. Events are in another etcd.
func TestCompactionByOthers(t *testing.T) {
	const definitions, one = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "metadata.name="
	compacted := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := request.URL.Query()
		fromEtcd := strings.HasPrefix(query.Get("fieldSelector"), one)
		switch {
		case request.URL.Path != definitions:
			t.Errorf("%s may not be in the default etcd, or may be forbidden", request.URL)
			w.WriteHeader(http.StatusForbidden)
		case compacted && fromEtcd && query.Get("resourceVersion") == "7" && query.Get("resourceVersionMatch") == "Exact":
			w.WriteHeader(http.StatusGone)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		default:
			_, _ = fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7"}}`)
		}
	}))
	t.Cleanup(server.Close)
	s := newSpace(klog.Background(), &environment{documents: readerOf(t, server), clock: clock.RealClock{}}, func() {})
	s.startPause(true, "it is full")
	for range 3 {
		if s.checkCompacted(t.Context(), s.pause) {
			t.Fatal("it takes etcd for compacted")
		}
	}
	compacted = true
	if !s.checkCompacted(t.Context(), s.pause) || s.pause.revision != "7" {
		t.Errorf("it does not take etcd for compacted, and the pause is %+v", s.pause)
	}
}

// TestPauseAndWhatWritesNothing has etcd be full. A migration that only has to be ended goes on, also if it runs.
func TestPauseAndWhatWritesNothing(t *testing.T) {
	begun := func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Status.StartTime = new(metav1.NewTime(noon))
		m.Status.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: v2}
		m.Status.Progress = &migrationv1alpha1.MigrationProgress{Processed: 7, Rewritten: 7, ContinueToken: "next"}
	}
	done := func(m *migrationv1alpha1.StorageVersionMigration) {
		begun(m)
		m.Status.Progress.ContinueToken, m.Status.SweepCompletionTime = "", new(metav1.NewTime(noon))
	}
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close() // The run ends at the first gate that asks for documents.
	for name, test := range map[string]struct {
		change func(*migrationv1alpha1.StorageVersionMigration)
		waits  bool
	}{
		"it has not begun":     {func(*migrationv1alpha1.StorageVersionMigration) {}, true},
		"objects are left":     {begun, true},
		"all objects are done": {done, false},
		"denied objects are tried once more": {func(m *migrationv1alpha1.StorageVersionMigration) {
			done(m)
			m.Status.Progress.Rewritten, m.Status.Progress.Denied = 6, 1
		}, true},
		"somebody took its start away": {func(m *migrationv1alpha1.StorageVersionMigration) {
			done(m)
			m.Status.StartTime = nil
		}, true},
		"objects that expire": {func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Spec.Resource.Group, m.Spec.Resource.Resource = "", "events"
		}, false},
	} {
		m := made(test.change)
		s, ctx := newStage(t, m)
		s.env.followers.known.Store(widgets, &followRecord{since: noon.Add(-time.Hour)})
		s.env.space = newSpace(klog.FromContext(ctx), s.env, s.stopWriting)
		r, stopped := s.run(m), false
		r.stop = func(error) { stopped = true }
		s.runs.claimResource(r)
		s.env.space.startPause(true, "it is full")
		d, err := s.checkGatesBeforeSlot(ctx, m)
		if waits := d.Reason == migrationv1alpha1.MigrationReasonAwaitingStorageSpace; err != nil || waits != test.waits {
			t.Errorf("%s: the decision is %+v, and the error is %v", name, d, err)
		}
		s.env.space.growth, s.env.documents = newGrowth(mebibyte), readerOf(t, away)
		if err := r.passGates(ctx); errors.Is(err, errStopped) != test.waits || stopped != test.waits {
			t.Errorf("%s: the run was stopped: %t, and begins with the error %v", name, stopped, err)
		}
	}
}
