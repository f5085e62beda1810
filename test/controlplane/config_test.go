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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestConfigIsCompletedOrRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		given Config
		want  Config
		err   string
	}{
		{
			name: "nothing means one default server on loopback",
			want: Config{Servers: []Server{{Name: "apiserver-1"}}, StartTimeout: defaultStartTimeout},
		},
		{
			name:  "several servers have hosts, and names of their own",
			given: Config{Servers: []Server{{}, {Name: "b"}}, StartTimeout: time.Second},
			want:  Config{Servers: []Server{{Name: "apiserver-1"}, {Name: "b"}}, Hosts: true, StartTimeout: time.Second},
		},
		{
			name:  "two servers of one name would be one identity",
			given: Config{Servers: []Server{{Name: "apiserver-2"}, {}}},
			err:   `server 2: the name "apiserver-2" is taken`,
		},
		{
			name:  "etcd's host is no server's",
			given: Config{Servers: []Server{{Name: "etcd"}}},
			err:   "is taken",
		},
		{
			name:  "a name must be one for a host",
			given: Config{Servers: []Server{{Name: "Server_1"}}},
			err:   `host name "Server_1"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := tc.given.complete()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("the error is %v, not %q", err, tc.err)
				}
				return
			}
			must(t, err)
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStorageVersionAPILeavesTheGivenServerAlone(t *testing.T) {
	t.Parallel()
	given := Server{FeatureGates: map[string]bool{"A": true}, RuntimeConfig: append(make([]string, 0, 8), "api/beta=true")}
	got := StorageVersionAPI(given)
	if diff := cmp.Diff(map[string]bool{"A": true}, given.FeatureGates); diff != "" {
		t.Errorf("given (-want +got):\n%s", diff)
	}
	want := Server{
		FeatureGates:  map[string]bool{"A": true, "StorageVersionAPI": true},
		RuntimeConfig: []string{"api/beta=true", "internal.apiserver.k8s.io/v1alpha1=true"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("server (-want +got):\n%s", diff)
	}
}

func TestArgumentsTakeThePlaceOfDefaults(t *testing.T) {
	t.Parallel()
	got := arguments{"--a=1", "--b=2", "--c"}.with("--b=3", "-c=false", "plain", "--d=4", "--d=5")
	want := arguments{"--a=1", "--b=3", "-c=false", "plain", "--d=4", "--d=5"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestFoldersAreRecognizedByWhatIsInThem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		object StoredObject
		gr     schema.GroupResource
		want   bool
	}{
		{
			name:   "a folder under another name",
			object: StoredObject{Key: "/registry/minions/n", Name: "n", Encoding: "v1", Kind: "Node"},
			gr:     schema.GroupResource{Resource: "nodes"},
			want:   true,
		},
		{
			name: "a folder in a folder",
			object: StoredObject{
				Key: "/registry/services/specs/ns/n", Namespace: "ns", Name: "n",
				Encoding: "v1", Kind: "Service",
			},
			gr:   schema.GroupResource{Resource: "services"},
			want: true,
		},
		{
			name: "what its neighbor is not",
			object: StoredObject{
				Key: "/registry/services/endpoints/ns/n", Namespace: "ns", Name: "n",
				Encoding: "v1", Kind: "Endpoints",
			},
			gr:   schema.GroupResource{Resource: "services"},
			want: false,
		},
		{
			name: "a plural that cannot be guessed",
			object: StoredObject{
				Key: "/registry/example.com/oxen/ns/n", Namespace: "ns", Name: "n",
				Encoding: "example.com/v1", Kind: "Ox",
			},
			gr:   schema.GroupResource{Group: "example.com", Resource: "oxen"},
			want: true,
		},
		{
			name: "the same name in another group",
			object: StoredObject{
				Key: "/registry/example.com/secrets/ns/n", Namespace: "ns", Name: "n",
				Encoding: "example.com/v1", Kind: "Secret",
			},
			gr:   schema.GroupResource{Resource: "secrets"},
			want: false,
		},
		{
			name:   "events of the newer group",
			object: StoredObject{Key: "/registry/events/ns/n", Namespace: "ns", Name: "n", Encoding: "v1", Kind: "Event"},
			gr:     schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
			want:   true,
		},
		{
			name:   "sealed built-ins",
			object: StoredObject{Key: "/registry/secrets/ns/n", Namespace: "ns", Name: "n", Provider: "aescbc:v1:k"},
			gr:     schema.GroupResource{Resource: "secrets"},
			want:   true,
		},
		{
			name: "sealed custom resources",
			object: StoredObject{
				Key: "/registry/example.com/secrets/ns/n", Namespace: "ns", Name: "n",
				Provider: "aescbc:v1:k",
			},
			gr:   schema.GroupResource{Resource: "secrets"},
			want: false,
		},
		{
			name:   "sealed custom resources of this group",
			object: StoredObject{Key: "/registry/example.com/oxen/n", Name: "n", Provider: "aescbc:v1:k"},
			gr:     schema.GroupResource{Group: "example.com", Resource: "oxen"},
			want:   true,
		},
		{
			name:   "bookkeeping without a name",
			object: StoredObject{Key: "/registry/masterleases/10.0.0.1", Encoding: "v1", Kind: "Endpoints"},
			gr:     schema.GroupResource{Resource: "endpoints"},
			want:   false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			prefix, known := tc.object.folder()
			if got := known && holds(prefix, tc.object, tc.gr); got != tc.want {
				t.Errorf("%s in %s: %t", tc.gr, prefix, got)
			}
		})
	}
}
