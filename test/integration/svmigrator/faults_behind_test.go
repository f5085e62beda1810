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
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	flundersInEtcd = "/registry-sample/" + controlplane.SampleGroup + "/flunders/"
	flundersBefore = controlplane.SampleGroup + "/v1beta1"
	flundersAfter  = controlplane.SampleGroup + "/v1alpha1"
)

// testFullBehind has an aggregated server whose own etcd is full. Its migration waits, and another one does not: the
// pace, which all migrations share, does not fall.
func testFullBehind(t *testing.T, c *cluster) {
	const (
		neighbours = 200
		// slowed is less than the pacer begins with. If failures behind the API server counted as overload, the limit would
		// be less than this: each one halves it, and there is about one in a second.
		slowed = 0.5
	)
	url := startEtcd(t, c.ControlPlane, "etcd-of-flunders", "--quota-backend-bytes=8388608")
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	if _, err := c.StartSampleServer(t.Context(), "", "--etcd-servers="+url); err != nil {
		t.Fatal(err)
	}
	c.createFlunders(t)
	for _, object := range flundersIn(t, etcd) {
		raw := strings.Replace(string(object.Value), flundersAfter, flundersBefore, 1)
		if _, err := etcd.Put(t.Context(), string(object.Key), raw); err != nil {
			t.Fatal(err)
		}
	}
	fillEtcd(t, etcd)
	s := c.stage(t, "neighbours", "Neighbour", neighbours)
	address := framework.FreeAddress(t)
	c.startManager(t, "manager", "--secure-port="+address[strings.LastIndex(address, ":")+1:])
	c.migrate(t, "flunders", flunders.WithVersion(""))
	failing := c.reports(t, "flunders", v1alpha1.MigrationRunning, corev1.ConditionTrue,
		v1alpha1.MigrationReasonRetrying, soon)
	t.Logf("the etcd of the aggregated server is full: %s", failing.Message)
	s.migrate(t)
	s.succeeded(t, soon, 1)
	// The API server itself may ask for fewer requests, or take too long, as on a busy machine.
	if limit, overloaded := c.pace(t, address); limit < slowed && !overloaded {
		t.Errorf("the migration that waits has slowed down all others: %v rewrites may be under way at a time", limit)
	}
	wantFlunders(t, etcd, flundersBefore)
	emptyEtcd(t, etcd, url)
	mustSucceed(t, c.ended(t, "flunders", soon))
	wantFlunders(t, etcd, flundersAfter)
}

// pace is how many rewrites may be under way at a time, and whether the API server was overloaded, as the metrics of
// the manager at the address tell. What an etcd answers that is full counts as StorageFull, and not as Overloaded.
func (c *cluster) pace(t *testing.T, address string) (limit float64, overloaded bool) {
	t.Helper()
	config := rest.CopyConfig(c.AdminConfig)
	config.Host, config.CAData, config.Insecure = "https://"+address, nil, true
	config.GroupVersion, config.NegotiatedSerializer = &schema.GroupVersion{}, scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		page, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
		if err != nil {
			return err
		}
		found := regexp.MustCompile(`(?m)^storage_version_migrator_pace_limit (\S+)$`).FindSubmatch(page)
		if found == nil {
			return errors.New("the metrics do not tell the limit")
		}
		overloaded = bytes.Contains(page, []byte(`storage_version_migrator_retried_rewrites_total{failure="Overloaded"}`))
		limit, err = strconv.ParseFloat(string(found[1]), 64)
		return err
	})
	return limit, overloaded
}

// flundersIn returns what is stored of flunders.
func flundersIn(t *testing.T, etcd *clientv3.Client) (objects []*mvccpb.KeyValue) {
	t.Helper()
	stored, err := etcd.Get(t.Context(), flundersInEtcd, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	return stored.Kvs
}

// wantFlunders complains unless all flunders are stored at that version.
func wantFlunders(t *testing.T, etcd *clientv3.Client, version string) {
	t.Helper()
	got := map[string]int{}
	for _, object := range flundersIn(t, etcd) {
		var stored metav1.TypeMeta
		if err := json.Unmarshal(object.Value, &stored); err != nil {
			t.Fatal(err)
		}
		got[stored.APIVersion]++
	}
	if want := map[string]int{version: flunderCount}; !maps.Equal(got, want) {
		t.Errorf("flunders are stored as %v, want %v", got, want)
	}
}

const filler = "/filler/"

// fillEtcd writes until etcd accepts no more.
func fillEtcd(t *testing.T, etcd *clientv3.Client) {
	t.Helper()
	puts := 0
	framework.Eventually(t, soon, func(ctx context.Context) error {
		for {
			puts++
			_, err := etcd.Put(ctx, fmt.Sprint(filler, puts), strings.Repeat("x", 100_000))
			if errors.Is(err, rpctypes.ErrNoSpace) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}

// emptyEtcd frees space as an administrator does.
func emptyEtcd(t *testing.T, etcd *clientv3.Client, url string) {
	t.Helper()
	if _, err := etcd.Delete(t.Context(), filler, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		if err := compact(ctx, etcd); err != nil {
			return err
		}
		if _, err := etcd.Defragment(ctx, url); err != nil {
			return err
		}
		_, err := etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		return err
	})
}
