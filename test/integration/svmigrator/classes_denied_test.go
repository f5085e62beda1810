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
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	parcelCount = 40
	crateCount  = 130
	// deniedCrates is more than the list of denied objects takes.
	deniedCrates = 110
	letterCount  = 20
	stampCount   = 20
	relicCount   = 30
	// leftBehind is an object in a namespace that does not exist.
	leftBehind, lost = "relic-left-behind", "lost"

	sealed    = "sealed objects are not to be updated"
	opposed   = "exceeded quota: letters, requested: 1, used: 20, limited: 20"
	cancelled = "this stamp is not to be used again"
)

var (
	parcels, crates  = newCustom("parcels", "Parcel"), newCustom("crates", "Crate")
	letters, stamps  = newCustom("letters", "Letter"), newCustom("stamps", "Stamp")
	deniedParcels    = []string{"parcel-00003", "parcel-00020", "parcel-00039"}
	refusedLetter    = "letter-00007"
	invalidStamp     = "stamp-00011"
	ratchetedStamp   = "stamp-00012-whose-payload-is-longer"
	viaResource      = []string{""}
	viaResourceTwice = []string{"", ""}
	viaStatusToo     = []string{"", "status"}
)

// testDenied has objects whose rewrite the API server refuses: by a policy about the resource alone, by a webhook that
// is asked about the status as well, and by a schema that was narrowed after they had been written.
func testDenied(t *testing.T, c *cluster) {
	hook := webhook.Start(t, c.ListenAddress()).Validation()
	for r, n := range map[custom]int{parcels: parcelCount, crates: crateCount, letters: letterCount, stamps: stampCount} {
		c.define(t, r)
		c.fill(t, r, strings.ToLower(r.kind), n)
	}
	ratcheted := stamps.object(ratchetedStamp)
	if _, err := c.at(stamps, "v1").Create(t.Context(), ratcheted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	areDenied := fmt.Sprintf("object.metadata.name in ['%s']", strings.Join(deniedParcels, "', '"))
	c.seal(t, parcels, areDenied, deniedParcels[0])
	c.seal(t, crates, fmt.Sprintf("object.metadata.name < 'crate-%05d'", deniedCrates), "crate-00000")
	c.exhaust(t, parcels)
	c.oppose(t, hook)
	c.narrow(t)
	for _, r := range []custom{parcels, crates, letters, stamps} {
		c.flip(t, r, "v2")
	}

	t.Run("without the status subresource", func(t *testing.T) { testDeniedForGood(t, c) })
	t.Run("by way of the status subresource", func(t *testing.T) { testDeniedAtFirst(t, c) })
	t.Run("in a namespace that does not exist", func(t *testing.T) { testLeftBehind(t, c) })
}

// testLeftBehind has an object that outlived its namespace. Once a policy is about the resource, the API server answers
// each write of the object with a 404 about the namespace.
func testLeftBehind(t *testing.T, c *cluster) {
	relics, locked := newCustom("relics", "Relic"), "relic-00000"
	c.define(t, relics)
	c.fill(t, relics, "relic", relicCount)
	c.leaveBehind(t, relics, locked)
	c.seal(t, relics, fmt.Sprintf("object.metadata.name == '%s'", locked), locked)
	c.flip(t, relics, "v2")
	judge := c.judge(t, relics.GroupResource)
	manager := c.startManager(t, "behind", "--feature-gates=StatusSubresourceFallback=false")
	c.migrate(t, relics.Resource, relics.WithVersion(""))
	m := c.ended(t, relics.Resource, soon)
	mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied)
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: relicCount - 1, Denied: 2})
	said := map[string]string{}
	for _, o := range m.Status.DeniedObjects {
		said[o.Namespace+"/"+o.Name] = o.Message
	}
	if message := said[lost+"/"+leftBehind]; message != `namespaces "`+lost+`" not found` {
		t.Errorf("of the object that was left behind the status says %q: %v", message, said)
	}
	judge.stored(t, relics.encoding("v2"), locked, leftBehind)
	framework.StopManager(t, manager)
}

// leaveBehind puts a copy of an object into a namespace that does not exist.
func (c *cluster) leaveBehind(t *testing.T, r custom, of string) {
	t.Helper()
	stored, err := c.Stored(t.Context(), r.GroupResource)
	if err != nil {
		t.Fatal(err)
	}
	original := stored[slices.IndexFunc(stored, func(o controlplane.StoredObject) bool { return o.Name == of })]
	raw, err := r.copyOf(original, leftBehind, lost)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSuffix(original.Key, metav1.NamespaceDefault+"/"+of) + lost + "/" + leftBehind
	if _, err := c.Etcd().Client().Put(t.Context(), key, string(raw)); err != nil {
		t.Fatal(err)
	}
}

func testDeniedForGood(t *testing.T, c *cluster) {
	manager := c.startManager(t, "without", "--feature-gates=StatusSubresourceFallback=false")
	began := time.Now()
	judges := map[custom]*judgement{}
	for _, r := range []custom{parcels, crates, letters, stamps} {
		judges[r] = c.judge(t, r.GroupResource)
		c.migrate(t, "without-"+r.Resource, r.WithVersion(""))
	}
	var allCrates []string
	for i := range deniedCrates {
		allCrates = append(allCrates, fmt.Sprintf("crate-%05d", i))
	}
	for _, test := range []struct {
		custom
		denied []string
		others int64
		says   string
	}{
		{parcels, deniedParcels, parcelCount - int64(len(deniedParcels)), sealed},
		{crates, allCrates, crateCount - deniedCrates, sealed},
		{letters, []string{refusedLetter}, letterCount - 1, opposed},
		{stamps, []string{invalidStamp}, stampCount, cancelled}, // and the one that is ratcheted
	} {
		t.Run(test.Resource, func(t *testing.T) {
			m := c.ended(t, "without-"+test.Resource, soon)
			first := "default/" + strings.ToLower(test.kind) + "-" // whichever it is
			denied := int64(len(test.denied))
			counts := fmt.Sprintf("%d of %d", denied, denied+test.others)
			mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied, counts, first, test.says)
			progress(t, m, v1alpha1.MigrationProgress{Rewritten: test.others, Denied: denied})
			namesDenied(t, m, test.denied, test.says)
			judges[test.custom].stored(t, test.encoding("v2"), test.denied...)
			judges[test.custom].onlyEncodings(t, 1)
			if versions := c.storedVersions(t, test.custom); !sameStrings(versions, "v1", "v2") {
				t.Errorf("status.storedVersions is %v", versions)
			}
			c.said(t, m.Name, "MigrationFailed", 1, v1alpha1.MigrationReasonObjectsDenied)
			c.tried(t, test.custom, began, test.denied, viaResourceTwice)
		})
	}
	framework.StopManager(t, manager)
}

// testDeniedAtFirst migrates the same resources by a manager that may take the way of the status.
func testDeniedAtFirst(t *testing.T, c *cluster) {
	manager := c.startManager(t, "with")
	began := time.Now()
	judges := map[custom]*judgement{}
	for _, r := range []custom{parcels, crates, letters, stamps} {
		judges[r] = c.judge(t, r.GroupResource)
		c.migrate(t, "with-"+r.Resource, r.WithVersion(""))
	}
	for _, test := range []struct {
		custom
		denied, others int64
	}{
		{parcels, int64(len(deniedParcels)), parcelCount - int64(len(deniedParcels))},
		{crates, deniedCrates, crateCount - deniedCrates},
	} {
		t.Run(test.Resource, func(t *testing.T) {
			m := c.ended(t, "with-"+test.Resource, soon)
			mustSucceed(t, m)
			progress(t, m, v1alpha1.MigrationProgress{Rewritten: test.denied, AlreadyCurrent: test.others})
			judges[test.custom].stored(t, test.encoding("v2"))
			if changes := judges[test.custom].onlyEncodings(t, 1); int64(len(changes.Encoded)) != test.denied {
				t.Errorf("%d objects are encoded otherwise than before", len(changes.Encoded))
			}
			if versions := c.storedVersions(t, test.custom); !sameStrings(versions, "v2") {
				t.Errorf("status.storedVersions is %v", versions)
			}
			if len(m.Status.DeniedObjects) > 0 {
				t.Errorf("%s names objects that are done", words(m))
			}
			c.said(t, m.Name, "MigrationSucceeded", 1) // the last event
			c.said(t, m.Name, "MigrationFailed", 0)
		})
	}
	c.tried(t, parcels, began, deniedParcels, viaStatusToo)
	for r, denied := range map[custom]string{letters: refusedLetter, stamps: invalidStamp} {
		t.Run(r.Resource, func(t *testing.T) {
			m := c.ended(t, "with-"+r.Resource, soon)
			mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied, denied)
			judges[r].onlyEncodings(t, 0)
			c.tried(t, r, began, []string{denied}, viaStatusToo)
			if versions := c.storedVersions(t, r); !sameStrings(versions, "v1", "v2") {
				t.Errorf("status.storedVersions is %v", versions)
			}
		})
	}
	framework.StopManager(t, manager)
}

// namesDenied wants the list of denied objects to name objects that were denied, as many as it has room for, with what
// the API server says.
func namesDenied(t *testing.T, m *v1alpha1.StorageVersionMigration, denied []string, says string) {
	t.Helper()
	if want := min(len(denied), v1alpha1.MaxDeniedObjects); len(m.Status.DeniedObjects) != want {
		t.Errorf("%d denied objects are named, want %d", len(m.Status.DeniedObjects), want)
	}
	named := map[string]bool{}
	for _, object := range m.Status.DeniedObjects {
		wanted := slices.Contains(denied, object.Name) && !named[object.Name]
		if !wanted || !identifies(object) || !strings.Contains(object.Message, says) {
			t.Errorf("among the denied objects is %+v", object)
		}
		named[object.Name] = true
	}
}

// identifies says whether a denied object can be found by what is said of it.
func identifies(object v1alpha1.DeniedObject) bool {
	return object.UID != "" && object.Namespace == metav1.NamespaceDefault
}

// tried wants that the manager sent these patches about each denied object since a time, and one about each other
// object.
func (c *cluster) tried(t *testing.T, r custom, since time.Time, denied []string, want []string) {
	t.Helper()
	var wrong []string
	tries := c.tries(t, r.GroupResource, since)
	for name, ways := range tries {
		expected := viaResource
		if slices.Contains(denied, name) {
			expected = want
		}
		if len(ways) > 0 && !slices.Equal(ways, expected) { // Else a read showed that a patch without an answer was done.
			wrong = append(wrong, fmt.Sprintf("%s by way of %q", name, ways))
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%d objects were not tried as they should, for instance %v", len(wrong), wrong[:min(3, len(wrong))])
	}
	for _, name := range denied {
		if len(tries[name]) == 0 {
			t.Errorf("%s was not tried", name)
		}
	}
}

// seal denies updates of objects for which a condition is true, and waits until that is in force for one of them.
func (c *cluster) seal(t *testing.T, r custom, condition, object string) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: r.Resource},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: r.updates(r.Resource)}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "!(" + condition + ")", Message: sealed}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: r.Resource},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: r.Resource, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	policies := c.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	if _, err := policies.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bindings := c.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	if _, err := bindings.Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitDenial(t, r, object, sealed)
}

// exhaust sets a quota that is used up, and more than that. It refuses new objects and is no reason to refuse what
// changes nothing.
func (c *cluster) exhaust(t *testing.T, r custom) {
	t.Helper()
	counted := corev1.ResourceName("count/" + r.String())
	quotas := c.Kube.CoreV1().ResourceQuotas(metav1.NamespaceDefault)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: r.Resource}}
	quota.Spec.Hard = corev1.ResourceList{counted: resource.MustParse("10")}
	quota, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// There is no controller here that counts.
	quota.Status = corev1.ResourceQuotaStatus{
		Hard: quota.Spec.Hard,
		Used: corev1.ResourceList{counted: resource.MustParse(fmt.Sprint(parcelCount))},
	}
	if _, err := quotas.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := c.objects(r).Create(ctx, r.object("one-too-many"), dry)
		if err == nil || !strings.Contains(err.Error(), "exceeded quota") {
			return fmt.Errorf("one more is answered with %v", err)
		}
		return nil
	})
}

// oppose has a webhook refuse one letter, by whatever way it is written.
func (c *cluster) oppose(t *testing.T, hook *webhook.Hook) {
	t.Helper()
	hook.Behave(webhook.Behaviour{Refuse: map[string]string{refusedLetter: opposed}})
	c.ask(t, hook, letters)
	c.awaitDenial(t, letters, refusedLetter, opposed)
}

// narrow makes a stamp invalid for good. Another one becomes invalid only for those who change what is wrong with it.
func (c *cluster) narrow(t *testing.T) {
	t.Helper()
	c.ChangeDefinition(t, stamps.GroupResource, schemas(func(schema *apiextensionsv1.JSONSchemaProps) {
		preserve, longest := true, int64(len("of "+invalidStamp))
		schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{"spec": {
			Type: "object", XPreserveUnknownFields: &preserve,
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"payload": {
				Type: "string", MaxLength: &longest,
				XValidations: apiextensionsv1.ValidationRules{
					{Rule: fmt.Sprintf("oldSelf != 'of %s'", invalidStamp), Message: cancelled},
				},
			}},
		}}
	}))
	c.awaitDenial(t, stamps, invalidStamp, cancelled)
}

// awaitDenial waits until a write of an object is refused.
func (c *cluster) awaitDenial(t *testing.T, r custom, object, says string) {
	t.Helper()
	touch := []byte(`{"metadata":{"labels":{"touched":"true"}}}`)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		err := c.tryPatch(ctx, r, object, touch)
		if err == nil || !strings.Contains(err.Error(), says) {
			return fmt.Errorf("writing %s is answered with %v", object, err)
		}
		return nil
	})
}
