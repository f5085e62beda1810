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
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestCompareStored(t *testing.T) {
	t.Parallel()
	object := func(key, encoding, whole string, created, modified, version int64) StoredObject {
		return StoredObject{
			Key:            key,
			Encoding:       encoding,
			WholeHash:      whole,
			CreateRevision: created,
			ModRevision:    modified,
			Version:        version,
		}
	}
	for _, tc := range []struct {
		name          string
		before, after []StoredObject
		want          StoredChanges
		onlyEncodings bool
	}{
		{
			name:          "nothing happened",
			before:        []StoredObject{object("a", "x/v1", "h", 2, 5, 3)},
			after:         []StoredObject{object("a", "x/v1", "h", 2, 5, 3)},
			want:          StoredChanges{Writes: map[string]int64{"a": 0}},
			onlyEncodings: true,
		},
		{
			name:          "one object was rewritten, another was there in the right encoding",
			before:        []StoredObject{object("a", "x/v1", "h", 2, 2, 1), object("b", "x/v2", "i", 3, 3, 1)},
			after:         []StoredObject{object("a", "x/v2", "h", 2, 9, 2), object("b", "x/v2", "i", 3, 3, 1)},
			want:          StoredChanges{Encoded: []string{"a"}, Writes: map[string]int64{"a": 1, "b": 0}},
			onlyEncodings: true,
		},
		{
			name:   "an object was rewritten three times, and changed",
			before: []StoredObject{object("a", "x/v1", "h", 2, 2, 1)},
			after:  []StoredObject{object("a", "x/v2", "i", 2, 9, 4)},
			want:   StoredChanges{Changed: []string{"a"}, Encoded: []string{"a"}, Writes: map[string]int64{"a": 3}},
		},
		{
			name:   "an object came, one went, and one was created anew and says the same",
			before: []StoredObject{object("gone", "x/v1", "h", 2, 2, 1), object("anew", "x/v1", "h", 3, 3, 1)},
			after:  []StoredObject{object("new", "x/v1", "h", 9, 9, 1), object("anew", "x/v1", "h", 8, 8, 1)},
			want: StoredChanges{
				Created: []string{"anew", "new"}, Deleted: []string{"anew", "gone"}, Writes: map[string]int64{},
			},
		},
		{
			name:          "an object that cannot be read was left alone",
			before:        []StoredObject{object("a", "", "", 2, 5, 3)},
			after:         []StoredObject{object("a", "", "", 2, 5, 3)},
			want:          StoredChanges{Writes: map[string]int64{"a": 0}},
			onlyEncodings: true,
		},
		{
			name:   "an object that cannot be read was written",
			before: []StoredObject{object("a", "", "", 2, 5, 3)},
			after:  []StoredObject{object("a", "", "", 2, 6, 4)},
			want:   StoredChanges{Changed: []string{"a"}, Writes: map[string]int64{"a": 1}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := CompareStored(tc.before, tc.after)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			if err := got.OnlyEncodings(); (err == nil) != tc.onlyEncodings {
				t.Errorf("only encodings: %v", err)
			}
		})
	}
}

// TestTheWholeHashCoversUnknownFields adds to a stored object a field that no type has, as an API server of a later
// version may write it.
func TestTheWholeHashCoversUnknownFields(t *testing.T) {
	t.Parallel()
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"},
		Data:       map[string]string{"c": "d"},
	}
	raw, err := configMap.Marshal()
	must(t, err)
	const field = 2000<<3 | 2 // of bytes
	extended := append(append([]byte{}, raw...), field&0x7f|0x80, field>>7, 1, 'x')
	var objects []StoredObject
	for _, content := range [][]byte{raw, extended} {
		unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Raw: content}
		encoded, err := unknown.Marshal()
		must(t, err)
		kv := &mvccpb.KeyValue{Key: []byte("/registry/configmaps/b/a"), Value: append([]byte(protobufPrefix), encoded...)}
		objects = append(objects, (&decoder{}).decode(kv))
	}
	known, unknown := objects[0], objects[1]
	if known.Name != "a" || unknown.Name != "a" || known.WholeHash == "" || known.ContentHash != unknown.ContentHash {
		t.Fatalf("what is known of them is not the same: %+v and %+v", known, unknown)
	}
	if known.WholeHash == unknown.WholeHash {
		t.Error("a field that is unknown does not change the whole hash")
	}
}
