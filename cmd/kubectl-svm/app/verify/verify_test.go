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

package verify

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
)

// failingEtcd returns many keys, then an error.
type failingEtcd struct {
	etcdserverpb.UnimplementedKVServer
	clock *clocktesting.FakeClock
	asked int
}

func (e *failingEtcd) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	if e.asked++; e.asked > 2 {
		return nil, status.Error(codes.DataLoss, "a page is corrupt")
	}
	e.clock.Step(time.Minute)
	keys := make([]*mvccpb.KeyValue, 100)
	for i := range keys {
		keys[i] = &mvccpb.KeyValue{Key: []byte("/registry/secrets/a")}
	}
	return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 1}, Kvs: keys, More: true}, nil
}

// TestErrorHasItsLine wants the line with the progress to go before something else is printed.
func TestErrorHasItsLine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, fakeClock := grpc.NewServer(), clocktesting.NewFakeClock(time.Unix(0, 0))
	etcdserverpb.RegisterKVServer(server, &failingEtcd{clock: fakeClock})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	streams, _, _, errOut := genericiooptions.NewTestIOStreams()
	o := &Options{
		Env:  &cli.Env{IOStreams: streams, Clock: fakeClock, Interactive: true},
		Etcd: Etcd{Endpoints: []string{"http://" + listener.Addr().String()}, Prefix: "/registry"},
	}
	_, err = o.Survey(t.Context())
	if err == nil || !strings.Contains(err.Error(), "a page is corrupt") ||
		errOut.String() != "\r\x1b[K50 objects read\r\x1b[K" {
		t.Errorf("got the error %v and printed %q", err, errOut)
	}
}

func TestErrorWithoutPassword(t *testing.T) {
	e := Etcd{Endpoints: []string{"http://bob:s3cret@127.0.0.1:1"}}
	if err := e.diagnose(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `"http://127.0.0.1:1/version"`) {
		t.Errorf("got the error %v", err)
	}
}

// TestKeysOfWhatIsNotMigrated wants to be told of objects that keep a key in use for ever, if it is known.
func TestKeysOfWhatIsNotMigrated(t *testing.T) {
	sealed := stored.Form{Format: stored.Encrypted, Provider: "aescbc", Key: "key1"}
	tallies := []stored.Tally{
		{Place: stored.Place{Resource: "gadgets"}, Form: sealed, Objects: 1},
		{Place: stored.Place{Resource: "secrets"}, Form: sealed, Objects: 2},
	}
	secrets := migrationv1alpha1.StorageState{}
	secrets.Spec.Resource.Resource = "secrets"
	for _, test := range []struct {
		name   string
		states []migrationv1alpha1.StorageState
		unread error
		want   string
	}{
		{"there are StorageStates", []migrationv1alpha1.StorageState{secrets}, nil,
			" The manager does not migrate these resources, because they have no StorageState: gadgets."},
		{"there are none", nil, nil, ""},
		{"they could not be read", []migrationv1alpha1.StorageState{secrets}, ErrNotCompared, ""},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		o := &Options{Env: &cli.Env{IOStreams: streams}, WithoutKeys: []string{"aescbc:key1"}}
		err := o.print(&stored.Survey{Tallies: tallies, States: test.states}, test.unread)
		want := "\nEncrypted with aescbc:key1: 3 objects. Keep this key." + test.want + "\n"
		if err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: got the error %v and\n%s\nwant in it %s", test.name, err, out, want)
		}
		out.Reset()
		o.Output.Format, o.WithoutKeys = cli.JSON, []string{"aescbc:key1", "-"}
		o.Endpoints = []string{"https://bob:no@a:2379", "https://b:2379"}
		var result Result
		if err := o.print(&stored.Survey{Tallies: tallies, States: test.states}, test.unread); err == nil {
			t.Errorf("%s: an object has a key that none may have", test.name)
		}
		if err := json.Unmarshal(out.Bytes(), &result); err != nil || result.Server != "https://a:2379,https://b:2379" ||
			!slices.Equal(result.Keys, []Key{{"aescbc:key1", 3}, {"-", 0}}) {
			t.Errorf("%s: got the error %v and the result %+v", test.name, err, result)
		}
	}
}

// TestNeverEncrypted wants nobody to be told for ever that objects are not encrypted which API servers never encrypt.
func TestNeverEncrypted(t *testing.T) {
	sealed := stored.Form{Format: stored.Encrypted, Provider: "aescbc", Key: "key1"}
	plain := stored.Form{Format: stored.Protobuf, APIVersion: "v1", Kind: "RangeAllocation"}
	at := func(group, resource string, form stored.Form) stored.Tally {
		return stored.Tally{Place: stored.Place{Group: group, Resource: resource}, Form: form, Objects: 2}
	}
	own := []stored.Tally{at("", "masterleases", plain), at("", "ranges", plain), at("", "secrets", sealed)}
	for _, test := range []struct {
		name    string
		tallies []stored.Tally
		key     string
		safe    bool
		want    string
	}{
		{"nothing else", own, "-", true,
			"\nEvery object is encrypted, but for what API servers never encrypt: masterleases, ranges.\n" +
				"Old revisions and backups of etcd were not read: they may have objects as they were before.\n"},
		{"a secret too", append(own, at("", "secrets", plain)), "-", false, "\nNot encrypted: 2 objects.\n"},
		{"a resource of that name", []stored.Tally{at("example.com", "ranges", plain)}, "-", false,
			"\nNot encrypted: 2 objects.\n"},
		{"they have a key all the same", []stored.Tally{at("", "ranges", sealed)}, "aescbc:key1", false,
			"\nEncrypted with aescbc:key1: 2 objects. Keep this key.\n"},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		o := &Options{Env: &cli.Env{IOStreams: streams}, WithoutKeys: []string{test.key}}
		err := o.print(&stored.Survey{Tallies: test.tallies}, nil)
		if (err == nil) != test.safe || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: got the error %v and\n%s\nwant in it %s", test.name, err, out, test.want)
		}
	}
	o := &Options{Names: []string{"ranges"}, WithoutKeys: []string{"-"}}
	o.Endpoints = []string{"http://127.0.0.1:1"}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "leave the name out") {
		t.Errorf("somebody asks whether ranges are encrypted, and gets the error %v", err)
	}
}
