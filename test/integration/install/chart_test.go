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

package install

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"
)

const chart = root + "/build/chart/svm-controller-manager"

// ofHelm are the functions of Helm that the templates use.
var ofHelm = template.FuncMap{
	"toYaml": func(value any) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	},
	"hasPrefix": func(prefix, text string) bool { return strings.HasPrefix(text, prefix) },
	"nindent": func(spaces int, text string) string {
		indent := "\n" + strings.Repeat(" ", spaces)
		return indent + strings.ReplaceAll(text, "\n", indent)
	},
}

// TestChart wants the chart to install what the overlays do, but for the namespace.
func TestChart(t *testing.T) {
	for _, test := range []struct {
		overlay     string
		observeOnly bool
	}{{"default", false}, {"observe-only", true}} {
		t.Run(test.overlay, func(t *testing.T) {
			want := byName(render(t, "overlays/"+test.overlay))
			delete(want, "Namespace//"+namespace)
			got := byName(renderChart(t, map[string]any{"observeOnly": test.observeOnly}))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-overlay +chart:\n%s", diff)
			}
		})
	}
}

// TestChartObservesWithFlags wants a manager that only observes to take all flags but those that would let it migrate.
func TestChartObservesWithFlags(t *testing.T) {
	deployment := byName(renderChart(t, map[string]any{
		"observeOnly": true, "args": []any{"--auto-migrate=*", "--controllers=*", "--settle-period=95s"},
	}))["Deployment/"+namespace+"/svm-controller-manager"]
	containers, _, err := unstructured.NestedSlice(deployment, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	want := []any{"--auto-migrate=-*", "--controllers=svmtrigger", "--settle-period=95s"}
	if diff := cmp.Diff(want, containers[0].(map[string]any)["args"]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestChartCleaning wants the value to do what the component does.
func TestChartCleaning(t *testing.T) {
	const fence = "ValidatingAdmissionPolicy//svm-controller-manager-fence"
	want := byName(render(t, "../../test/integration/install/testdata/cleaning"))[fence]
	got := byName(renderChart(t, map[string]any{"cleaning": true}))[fence]
	if diff := cmp.Diff(want, got); want == nil || diff != "" {
		t.Errorf("-component +chart:\n%s", diff)
	}
}

// TestChartPods wants the Pods to run where the values say.
func TestChartPods(t *testing.T) {
	want := map[string]any{
		"nodeSelector":      map[string]any{"kubernetes.io/os": "linux", "pool": "infra"},
		"tolerations":       []any{map[string]any{"operator": "Exists"}},
		"imagePullSecrets":  []any{map[string]any{"name": "registry"}},
		"priorityClassName": "mine",
		"volumes":           []any{map[string]any{"name": "ca", "emptyDir": map[string]any{}}},
	}
	values := map[string]any{
		"podAnnotations": map[string]any{"who": "me: \"I\""}, "affinity": map[string]any{"nodeAffinity": nil},
		"podSecurityContext": map[string]any{"runAsUser": nil, "runAsGroup": nil, "fsGroupChangePolicy": "Always"},
	}
	maps.Copy(values, want)
	delete(values, "volumes")
	values["extraVolumes"] = want["volumes"]
	ofContainer := map[string]any{
		"env":          []any{map[string]any{"name": "GODEBUG", "value": "fips140=on"}},
		"volumeMounts": []any{map[string]any{"name": "ca", "mountPath": "/ca"}},
	}
	values["extraEnv"], values["extraVolumeMounts"] = ofContainer["env"], ofContainer["volumeMounts"]
	deployment := byName(renderChart(t, values))["Deployment/"+namespace+"/svm-controller-manager"]
	pod, _, err := unstructured.NestedMap(deployment, "spec", "template", "spec")
	if err != nil {
		t.Fatal(err)
	}
	annotations, _, err := unstructured.NestedMap(deployment, "spec", "template", "metadata", "annotations")
	if err != nil {
		t.Fatal(err)
	}
	container := pod["containers"].([]any)[0].(map[string]any)
	for field, value := range ofContainer {
		if diff := cmp.Diff(value, container[field]); diff != "" {
			t.Errorf("-values +%s of the container:\n%s", field, diff)
		}
	}
	want["affinity"] = map[string]any{}
	want["securityContext"] = map[string]any{
		"runAsNonRoot": true, "fsGroupChangePolicy": "Always", "seccompProfile": map[string]any{"type": "RuntimeDefault"},
	}
	for field := range pod {
		if _, chosen := want[field]; !chosen {
			delete(pod, field)
		}
	}
	if diff := cmp.Diff(want, pod); diff != "" {
		t.Errorf("-values +Pod:\n%s", diff)
	}
	if diff := cmp.Diff(values["podAnnotations"], any(annotations)); diff != "" {
		t.Errorf("-values +annotations:\n%s", diff)
	}
}

// TestChartUsesItsValues changes the values that the overlays fix. A script makes the templates of the manifests, and
// would not notice if it replaced nothing.
func TestChartUsesItsValues(t *testing.T) {
	const elsewhere = "elsewhere"
	resources := map[string]any{
		"requests": map[string]any{"cpu": "1", "memory": "1Gi"}, "limits": map[string]any{"memory": "2Gi"},
	}
	objects := renderChartIn(t, elsewhere, map[string]any{
		"replicas": 3, "resources": resources, "fence": false, "priority": false, "crds": map[string]any{"install": false},
		"image": map[string]any{"repository": "example.com/manager", "tag": "v9"},
	})
	for _, object := range objects {
		if text, err := object.MarshalJSON(); err != nil || bytes.Contains(text, []byte(namespace)) {
			t.Errorf("%s %s is about the namespace of the overlays: %v", object.GetKind(), object.GetName(), err)
		}
		switch object.GetKind() {
		case "CustomResourceDefinition", "ValidatingAdmissionPolicy", "FlowSchema", "PriorityLevelConfiguration":
			t.Errorf("%s %s is there, and the values leave it out", object.GetKind(), object.GetName())
		}
	}
	deployment := byName(objects)["Deployment/"+elsewhere+"/svm-controller-manager"]
	containers, _, err := unstructured.NestedSlice(deployment, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	container, spec := containers[0].(map[string]any), deployment["spec"].(map[string]any)
	got := map[string]any{
		"replicas": spec["replicas"], "image": container["image"], "resources": container["resources"],
	}
	want := map[string]any{"replicas": float64(3), "image": "example.com/manager:v9", "resources": any(resources)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-values +Deployment:\n%s", diff)
	}
}

// TestChartWithoutPriorityClass wants neither the class nor a quota of it.
func TestChartWithoutPriorityClass(t *testing.T) {
	for _, none := range []any{nil, ""} {
		objects := byName(renderChart(t, map[string]any{"priorityClassName": none}))
		name, found, err := unstructured.NestedFieldNoCopy(objects["Deployment/"+namespace+"/svm-controller-manager"],
			"spec", "template", "spec", "priorityClassName")
		if err != nil || found {
			t.Errorf("with %v the class is %v, %v", none, name, err)
		}
		if quota := objects["ResourceQuota/"+namespace+"/svm-controller-manager"]; quota != nil {
			t.Errorf("with %v there is a quota: %v", none, quota)
		}
	}
}

func byName(objects []*unstructured.Unstructured) map[string]map[string]any {
	named := map[string]map[string]any{}
	for _, object := range objects {
		// Helm keeps these when it removes the release.
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "helm.sh/resource-policy")
		named[object.GetKind()+"/"+object.GetNamespace()+"/"+object.GetName()] = object.Object
	}
	return named
}

// merge gives a chart the values of a person as Helm does: maps are merged, and null removes a field.
func merge(values, chosen map[string]any) {
	for name, value := range chosen {
		inner, isMap := value.(map[string]any)
		before, wasMap := values[name].(map[string]any)
		switch {
		case value == nil:
			delete(values, name)
		case isMap && wasMap:
			merge(before, inner)
		default:
			values[name] = value
		}
	}
}

func renderChart(t *testing.T, chosen map[string]any) []*unstructured.Unstructured {
	t.Helper()
	return renderChartIn(t, namespace, chosen)
}

func renderChartIn(t *testing.T, namespace string, chosen map[string]any) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(content, &values); err != nil {
		t.Fatal(err)
	}
	merge(values, chosen)
	about, err := os.ReadFile(chart + "/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var metadata struct{ AppVersion string }
	if err := yaml.Unmarshal(about, &metadata); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(chart + "/templates/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d templates, %v", len(files), err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		parsed, err := template.New(filepath.Base(file)).Funcs(ofHelm).ParseFiles(file)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		release := map[string]any{"Namespace": namespace}
		if err := parsed.Execute(&out, map[string]any{"Values": values, "Release": release, "Chart": metadata}); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, decode(t, &out)...)
	}
	return objects
}

// TestChartValues wants Helm to refuse a value that the chart does not have: a typing error would change nothing.
func TestChartValues(t *testing.T) {
	values, schema := map[string]any{}, struct {
		AdditionalProperties *bool
		Properties           map[string]any
	}{}
	for name, into := range map[string]any{"values.yaml": &values, "values.schema.json": &schema} {
		content, err := os.ReadFile(filepath.Join(chart, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(content, into); err != nil {
			t.Fatal(err)
		}
	}
	// Charts that have this one as a part set these.
	delete(schema.Properties, "global")
	delete(schema.Properties, "enabled")
	if diff := cmp.Diff(sets.KeySet(values), sets.KeySet(schema.Properties)); diff != "" {
		t.Errorf("-values.yaml +values.schema.json:\n%s", diff)
	}
	if schema.AdditionalProperties == nil || *schema.AdditionalProperties {
		t.Error("the schema allows other values")
	}
}
