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

package stored

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestFormOf(t *testing.T) {
	deployment := runtime.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	unknown, err := (&runtime.Unknown{TypeMeta: deployment, Raw: []byte("x")}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	widget := map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "spec": map[string]any{"kind": "small"}}
	inCBOR, err := direct.Marshal(widget)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := proto.Marshal(&kmstypes.EncryptedObject{EncryptedData: []byte("data"), KeyID: "key-2026"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, value string
		want        Form
	}{
		{"protobuf", "k8s\x00" + string(unknown), Form{Format: Protobuf, APIVersion: "apps/v1", Kind: "Deployment"}},
		{"protobuf that is cut off", "k8s\x00" + string(unknown[:len(unknown)/2]), Form{Format: Unreadable}},
		{"json", `{"spec":{"kind":"X"},"kind":"Widget","apiVersion":"example.com/v1"}`,
			Form{Format: JSON, APIVersion: "example.com/v1", Kind: "Widget"}},
		{"json with fields of similar names", `{"apiVersion":"example.com/v1","kind":"Widget","Kind":"X","APIVersion":"y"}`,
			Form{Format: JSON, APIVersion: "example.com/v1", Kind: "Widget"}},
		{"json of something else", `{"spec":{}}`, Form{Format: Unreadable}},
		{"cbor", "\xd9\xd9\xf7" + string(inCBOR), Form{Format: CBOR, APIVersion: "example.com/v1", Kind: "Widget"}},
		{"a key of a provider", "k8s:enc:aescbc:v1:key1:\x00:\x01", Form{Format: Encrypted, Provider: "aescbc", Key: "key1"}},
		{"the first version of KMS", "k8s:enc:kms:v1:vault:\x00", Form{Format: Encrypted, Provider: "kms:v1", Key: "vault"}},
		{"the second version of KMS", "k8s:enc:kms:v2:vault:" + string(sealed),
			Form{Format: Encrypted, Provider: "kms:v2", Key: "vault", KeyID: "key-2026"}},
		{"broken bytes of KMS", "k8s:enc:kms:v2:vault:\xff\xff", Form{Format: Encrypted, Provider: "kms:v2", Key: "vault"}},
		{"an encryption that is cut off", "k8s:enc:aes", Form{Format: Encrypted}},
		{"a number", "7", Form{Format: Unreadable}},
		{"nothing", "", Form{Format: Unreadable}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := FormOf([]byte(test.value)); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestKeysWithColons(t *testing.T) {
	keys := []string{"-", "aescbc:team:2024", "kms:v1:vault:a", "aescbc:key1"}
	for value, want := range map[string]string{
		"k8s:enc:aescbc:v1:team:2024:\x00": "team:2024",
		"k8s:enc:aescbc:v1:team:2025:\x00": "team",
		"k8s:enc:aesgcm:v1:team:2024:\x00": "team",
		"k8s:enc:kms:v1:vault:a:\x00":      "vault:a",
		"k8s:enc:aescbc:v1:key1:\x00":      "key1",
	} {
		if got := FormOf([]byte(value)).named([]byte(value), keys); got.Key != want {
			t.Errorf("%q has the key %q, want %q", value, got.Key, want)
		}
	}
}

func TestPlaceOf(t *testing.T) {
	tests := map[string]Place{
		"/registry/secrets/default/token":                                       {"", "secrets"},
		"/registry/deployments/default/web":                                     {"", "deployments"},
		"/registry/services/specs/default/kubernetes":                           {"", "services"},
		"/registry/services/endpoints/default/kubernetes":                       {"", "endpoints"},
		"/registry/minions/node-1":                                              {"", "nodes"},
		"/registry/controllers/default/web":                                     {"", "replicationcontrollers"},
		"/registry/ingress/default/web":                                         {"", "ingresses"},
		"/registry/clusterroles/system:node":                                    {"", "clusterroles"},
		"/registry/example.com/widgets/default/a.b.c":                           {"example.com", "widgets"},
		"/registry/example.com/widgets/a.b.c":                                   {"example.com", "widgets"},
		"/registry/apiregistration.k8s.io/apiservices/v1.":                      {"apiregistration.k8s.io", "apiservices"},
		"/registry/wardle.example.com/wardle.example.com/flunders/default/mine": {"wardle.example.com", "flunders"},
	}
	for key, want := range tests {
		if got := placeOf(key, "/registry"); got != want {
			t.Errorf("%s is read as %+v", key, got)
		}
	}
}

func TestFoldersOf(t *testing.T) {
	want := []string{
		"/registry/controllers/", "/registry/endpoints/",
		"/registry/migration.k8s.io/migration.k8s.io/storagestates/", "/registry/migration.k8s.io/storagestates/",
		"/registry/replicationcontrollers/", "/registry/services/", "/registry/storagestates/",
	}
	got := foldersOf("/registry", []string{"services", "endpoints", "replicationcontrollers", "services"})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("folders (-want +got):\n%s", diff)
	}
}

// TestGroupsOfNames wants a mistake in a group not to find the objects of a built-in resource of the same plural.
func TestGroupsOfNames(t *testing.T) {
	core := Tally{Place: Place{"", "services"}, Form: Form{Format: Encrypted}}
	custom := Tally{Place: Place{"serving.knative.dev", "services"}, Form: Form{Format: JSON}}
	// The keys of some aggregated servers lack the group, and the object tells it.
	bare := Tally{Place: Place{"", "services"}, Form: Form{Format: JSON, APIVersion: "bare.example.com/v1", Kind: "S"}}
	for name, want := range map[string][3]bool{
		"services": {true, true, true}, "services.serving.knative.dev": {false, true, false},
		"services.serving.knative.dv": {}, "services.bare.example.com": {false, false, true},
		"services.apps": {true, false, true}, // Keys of kube-apiserver do not tell the group.
	} {
		names := []string{name}
		if got := [3]bool{core.isOneOf(names), custom.isOneOf(names), bare.isOneOf(names)}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestUnclaimed(t *testing.T) {
	state := func(group, resource string, hashes ...string) migrationv1alpha1.StorageState {
		s := migrationv1alpha1.StorageState{}
		s.Spec.Resource = migrationv1alpha1.GroupResource{Group: group, Resource: resource}
		s.Name = s.Spec.Resource.StorageStateName()
		s.Status.PersistedStorageVersionHashes = hashes
		return s
	}
	kept := func(group, resource, apiVersion, kind string) Tally {
		return Tally{Place: Place{group, resource}, Form: Form{Format: JSON, APIVersion: apiVersion, Kind: kind}, Objects: 3}
	}
	ofServers := state("networking.k8s.io", "ingresses", hashOf("networking.k8s.io", "v1", "Ingress"))
	ofServers.Status.Evidence = &migrationv1alpha1.StorageEvidence{
		Source: migrationv1alpha1.EvidenceFromServerDiscovery}
	ofDefinition := state("serving.knative.dev", "services", hashOf("serving.knative.dev", "v1", "Service"))
	ofDefinition.Status.Evidence = &migrationv1alpha1.StorageEvidence{
		Source: migrationv1alpha1.EvidenceFromCustomResourceDefinition}
	tests := []struct {
		name   string
		kept   Tally
		states []migrationv1alpha1.StorageState
		want   []string
	}{
		{"a version that the state claims", kept("example.com", "widgets", "example.com/v1", "Widget"),
			[]migrationv1alpha1.StorageState{state("example.com", "widgets", "x", hashOf("example.com", "v1", "Widget"))}, nil},
		{"a version that it does not claim", kept("example.com", "widgets", "example.com/v1alpha1", "Widget"),
			[]migrationv1alpha1.StorageState{state("example.com", "widgets", hashOf("example.com", "v1", "Widget"))},
			[]string{"widgets.example.com"}},
		{"a state that knows nothing", kept("example.com", "widgets", "example.com/v1alpha1", "Widget"),
			[]migrationv1alpha1.StorageState{state("example.com", "widgets", migrationv1alpha1.Unknown)}, nil},
		{"a state that is new", kept("example.com", "widgets", "example.com/v1alpha1", "Widget"),
			[]migrationv1alpha1.StorageState{state("example.com", "widgets")}, nil},
		{"no state", kept("example.com", "widgets", "example.com/v1", "Widget"), nil, nil},
		{"a state of another group", kept("example.com", "widgets", "example.com/v1", "Widget"),
			[]migrationv1alpha1.StorageState{state("example.org", "widgets", "x")}, nil},
		{"stored in the group that the resource had", kept("", "ingresses", "extensions/v1beta1", "Ingress"),
			[]migrationv1alpha1.StorageState{ofServers}, []string{"ingresses.networking.k8s.io"}},
		{"a custom resource of the same name", kept("", "services", "v1", "Service"),
			[]migrationv1alpha1.StorageState{ofDefinition}, nil},
		{"storage that two resources share", kept("", "events", "v1", "Event"), []migrationv1alpha1.StorageState{
			state("events.k8s.io", "events", hashOf("", "v1", "Event")), state("", "events", hashOf("", "v1", "Event"))}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			survey := Survey{Tallies: []Tally{test.kept}, States: test.states}
			var got []string
			for _, u := range survey.Unclaimed() {
				got = append(got, u.StorageState)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("unclaimed (-want +got):\n%s", diff)
			}
		})
	}
}

func hashOf(group, version, kind string) string {
	return storageversion.Hash(schema.GroupVersion{Group: group, Version: version}, kind)
}
