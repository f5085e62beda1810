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

package v1alpha1

import (
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// filledSince is the start of the year that the times of filled objects lie in.
var filledSince = time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)

// fill sets everything below v, to values that follow from the path alone: a new field changes no other's value.
func fill(v reflect.Value, path string) {
	if fillKnown(v, path) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			fill(v.Field(i), path+"-"+strings.ToLower(name))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), fmt.Sprintf("%s-%d", path, i))
		}
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32:
		v.SetInt(numberFor(path, 100)) // the only limit there is, that of a percentage
	case reflect.Int64:
		v.SetInt(numberFor(path, 1_000_000))
	default:
		panic(fmt.Sprintf("the API has a field %q of kind %s, which fill does not know", path, v.Kind()))
	}
}

// fillKnown sets values of the types that allow only some values, and tells whether v is one.
func fillKnown(v reflect.Value, path string) bool {
	switch v.Interface().(type) {
	case metav1.Time:
		seconds := numberFor(path, 365*24*60*60)
		v.Set(reflect.ValueOf(metav1.NewTime(filledSince.Add(time.Duration(seconds) * time.Second))))
	case metav1.MicroTime:
		seconds := numberFor(path, 365*24*60*60)
		v.Set(reflect.ValueOf(metav1.NewMicroTime(filledSince.Add(time.Duration(seconds) * time.Second))))
	case EvidenceSource:
		v.Set(reflect.ValueOf(EvidenceFromServerDiscovery))
	case corev1.ConditionStatus:
		v.Set(reflect.ValueOf(corev1.ConditionTrue))
	case metav1.ConditionStatus:
		v.Set(reflect.ValueOf(metav1.ConditionTrue))
	default:
		return false
	}
	return true
}

// numberFor is a number from 1 to limit that follows from the path.
func numberFor(path string, limit uint32) int64 {
	hash := fnv.New32a()
	hash.Write([]byte(path))
	return int64(1 + hash.Sum32()%limit)
}

// filledMigration is a StorageVersionMigration with every field set, and valid.
func filledMigration() *StorageVersionMigration {
	m := &StorageVersionMigration{
		TypeMeta:   metav1.TypeMeta{APIVersion: SchemeGroupVersion.String(), Kind: "StorageVersionMigration"},
		ObjectMeta: metav1.ObjectMeta{Name: "everything"},
	}
	fill(reflect.ValueOf(&m.Spec).Elem(), "spec")
	fill(reflect.ValueOf(&m.Status).Elem(), "status")
	return m
}

// filledState is a StorageState with every field set, and valid.
func filledState() *StorageState {
	s := &StorageState{
		TypeMeta: metav1.TypeMeta{APIVersion: SchemeGroupVersion.String(), Kind: "StorageState"},
	}
	fill(reflect.ValueOf(&s.Spec).Elem(), "spec")
	fill(reflect.ValueOf(&s.Status).Elem(), "status")
	s.Name = s.Spec.Resource.StorageStateName()
	s.Status.CurrentStorageVersionHash = s.Status.PersistedStorageVersionHashes[0]
	for i := range s.Status.Conditions {
		// Reasons have no dashes.
		s.Status.Conditions[i].Reason = strings.ReplaceAll(s.Status.Conditions[i].Reason, "-", "_")
	}
	return s
}
