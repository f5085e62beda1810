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

package svmtrigger

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// TestEveryFieldOfAStatusIsCompared changes one field after the other, also those that the API gets later.
func TestEveryFieldOfAStatusIsCompared(t *testing.T) {
	same := func(a, b *migrationv1alpha1.StorageStateStatus) bool {
		return sameFacts(a, b) && sameEvidence(a.Evidence, b.Evidence)
	}
	full := &migrationv1alpha1.StorageStateStatus{}
	fields := leaves(reflect.ValueOf(full).Elem(), "status")
	if !same(full, full.DeepCopy()) {
		t.Error("a copy is not the same")
	}
	for i := range fields {
		changed := full.DeepCopy()
		one := leaves(reflect.ValueOf(changed).Elem(), "status")[i]
		one.change()
		if same(full, changed) {
			t.Errorf("a change of %s goes unnoticed", one.name)
		}
	}
	for _, partly := range []*migrationv1alpha1.StorageStateStatus{{}, {Backoff: &migrationv1alpha1.MigrationBackoff{}}} {
		if same(full, partly) || same(partly, full) || !same(partly, partly.DeepCopy()) {
			t.Errorf("%+v is not told from another status", partly)
		}
	}
}

// leaf is a field that holds a value.
type leaf struct {
	name  string
	value reflect.Value
}

// leaves are those of a value, in which no pointer stays nil and no list empty.
func leaves(v reflect.Value, name string) []leaf {
	switch {
	case v.Type() == reflect.TypeFor[metav1.Time]():
		return []leaf{{name, v}}
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return leaves(v.Elem(), name)
	case v.Kind() == reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		return leaves(v.Index(0), name)
	case v.Kind() == reflect.Struct:
		var all []leaf
		for i := range v.NumField() {
			all = append(all, leaves(v.Field(i), name+"."+v.Type().Field(i).Name)...)
		}
		return all
	default:
		return []leaf{{name, v}}
	}
}

func (l leaf) change() {
	switch {
	case l.value.Kind() == reflect.String:
		l.value.SetString("changed")
	case l.value.CanInt():
		l.value.SetInt(1)
	default:
		l.value.Set(reflect.ValueOf(metav1.NewTime(time.Unix(1, 0)))) // panics for a kind that nobody thought of
	}
}
