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

package manager

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/svm-api/migration/crds"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/definition"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// longEnoughToLoop is how long a controller that loops would write hundreds of states.
const longEnoughToLoop = 10 * time.Second

// testDefinitionsOfOthers begins where kube-storage-version-migrator's definitions are installed, and puts them back
// under a manager that runs. It leaves ours installed.
func testDefinitionsOfOthers(t *testing.T, cp *controlplane.ControlPlane) {
	theirs := definitionsOfKubeStorageVersionMigrator(t)
	ours, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, cp, theirs...)
	p := startManager(t, cp, framework.Manager, "waiting", "--leader-elect=false")
	eventually(t, soon, "the manager says that the definitions are of others", func() bool {
		return strings.Contains(p.Log(), "lacks a field")
	})
	time.Sleep(longEnoughToLoop)
	const check = "-needs-storagestates.v1alpha1.migration.k8s.io failed"
	if _, body := p.get(t, nil, "/readyz"); !strings.Contains(body, check) {
		t.Errorf("/readyz does not say what is missing:\n%s", body)
	}
	if n := stateWrites(t, cp, "waiting"); n != 0 {
		t.Errorf("%d writes of states that could not be stored", n)
	}
	checkRepeats(t, p.Log(), "lacks a field", 4, unanswered) // Two controllers wait for two resources.

	apply(t, cp, ours...)
	states := dynamicClient(t, cp).Resource(v1alpha1.SchemeGroupVersion.WithResource("storagestates"))
	var recorded map[string]record
	eventually(t, soon, "all states are recorded, and none is about to be written", func() bool {
		before := stateWrites(t, cp, "waiting")
		time.Sleep(5 * time.Second)
		recorded = records(t, states)
		return len(recorded) > 0 && stateWrites(t, cp, "waiting") == before
	})

	// The API server ends the watch of states, and each one looks as if another controller had written it.
	apply(t, cp, theirs...)
	select {
	case <-p.Done():
	case <-time.After(soon):
		t.Fatal("the manager goes on although its writes are lost")
	}
	if log := p.Log(); p.Wait() == nil || !strings.Contains(log, "refused fields of an object") {
		t.Errorf("the manager ended with %v, and does not say why:\n%s", p.Wait(), log)
	}
	// The API server changes its OpenAPI document later than the definition.
	documents := client(t, cp.AdminConfig()).Discovery()
	eventually(t, soon, "the API server tells of their definitions", func() bool {
		_, missing, err := definition.Check(t.Context(), documents, definition.States)
		return err == nil && missing != ""
	})
	again := startManager(t, cp, framework.Manager, "again", "--leader-elect=false")
	eventually(t, soon, "the next one waits", func() bool { return strings.Contains(again.Log(), "lacks a field") })
	time.Sleep(longEnoughToLoop)
	if n := stateWrites(t, cp, "again"); n != 0 {
		t.Errorf("%d writes of states that could not be stored", n)
	}

	if err := again.Kill(); err != nil {
		t.Fatal(err)
	}
	apply(t, cp, ours...)
	var after map[string]record
	eventually(t, soon, "the API server reads all fields again", func() bool {
		after = records(t, states)
		return len(after) >= len(recorded)
	})
	for name, before := range recorded {
		if after[name].uid != before.uid || after[name].epoch < before.epoch {
			t.Errorf("the state %s had %+v, and has %+v after the definitions were replaced for a while",
				name, before, after[name])
		}
	}
}

func definitionsOfKubeStorageVersionMigrator(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	file, err := os.Open("../api/testdata/kube-storage-version-migrator-crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var definitions []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		definition := &unstructured.Unstructured{}
		err := decoder.Decode(&definition.Object)
		if errors.Is(err, io.EOF) {
			return definitions
		}
		if err != nil {
			t.Fatal(err)
		}
		if definition.Object != nil {
			definitions = append(definitions, definition)
		}
	}
}

// apply puts the definitions in the place of those that are there.
func apply(t *testing.T, cp *controlplane.ControlPlane, definitions ...*unstructured.Unstructured) {
	t.Helper()
	client := dynamicClient(t, cp).Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, definition := range definitions {
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // The API server writes its status.
			present, err := client.Get(t.Context(), definition.GetName(), metav1.GetOptions{})
			if err != nil {
				_, err = client.Create(t.Context(), definition, metav1.CreateOptions{})
				return err
			}
			present.Object["spec"] = definition.Object["spec"]
			_, err = client.Update(t.Context(), present, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func dynamicClient(t *testing.T, cp *controlplane.ControlPlane) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// record is what must not be lost of a state.
type record struct {
	uid   types.UID
	epoch int64
}

// records returns the states that have an epoch, by their names.
func records(t *testing.T, states dynamic.ResourceInterface) map[string]record {
	t.Helper()
	list, err := states.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]record{}
	for _, state := range list.Items {
		if epoch, _, _ := unstructured.NestedInt64(state.Object, "status", "epoch"); epoch > 0 {
			found[state.GetName()] = record{state.GetUID(), epoch}
		}
	}
	return found
}

// stateWrites counts the requests of a manager that would write states.
func stateWrites(t *testing.T, cp *controlplane.ControlPlane, user string) int {
	t.Helper()
	counts, err := cp.Requests(controlplane.RequestFilter{
		Users: []string{user}, Verbs: []string{"create", "update", "patch", "delete"},
		Resources: []schema.GroupResource{v1alpha1.Resource("storagestates")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts.Total()
}
