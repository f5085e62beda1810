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

package webhook

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

func testValidation(t *testing.T, cp *controlplane.ControlPlane) {
	client, err := kubernetes.NewForConfig(cp.AdminConfig())
	must(t, err)
	for _, name := range []string{"mule", "ox"} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
	}
	rewrite := func(ctx context.Context, name string) error {
		configMaps := client.CoreV1().ConfigMaps("default")
		_, err := configMaps.Patch(ctx, name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		return err
	}
	server := Start(t, cp.ListenAddress())
	hook := server.Validation()
	hook.Behave(Behaviour{Refuse: map[string]string{"mule": "mules do not move"}})
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
		},
	}
	configurations := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configurations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stubborn"},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{hook.ValidatingWebhook("stubborn.example.com", rule)},
	}, metav1.CreateOptions{})
	must(t, err)
	framework.Eventually(t, testTimeout, func(ctx context.Context) error {
		if err := rewrite(ctx, "mule"); err == nil {
			return errors.New("a rewrite was allowed")
		}
		return nil
	})

	t.Run("it refuses one object, with a message", func(t *testing.T) {
		before := hook.Requests()
		err := rewrite(t.Context(), "mule")
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "mules do not move") {
			t.Errorf("the rewrite was refused with %v", err)
		}
		must(t, rewrite(t.Context(), "ox"))
		if asked := hook.Requests() - before; asked != 2 {
			t.Errorf("the hook was asked %d times", asked)
		}
	})
	t.Run("it denies objects, each with a status of its own", func(t *testing.T) { checkDeny(t, hook, rewrite) })
	t.Run("it fails and recovers", func(t *testing.T) {
		hook.Behave(Behaviour{Fail: true})
		if err := rewrite(t.Context(), "ox"); !apierrors.IsInternalError(err) {
			t.Errorf("the rewrite was answered with %v", err)
		}
		hook.Behave(Behaviour{})
		must(t, rewrite(t.Context(), "ox"))
		must(t, rewrite(t.Context(), "mule"))
	})
	t.Run("the port is closed and opened again", func(t *testing.T) {
		must(t, server.Close())
		if err := rewrite(t.Context(), "ox"); !apierrors.IsInternalError(err) {
			t.Errorf("the rewrite was answered with %v", err)
		}
		must(t, server.Reopen())
		must(t, rewrite(t.Context(), "ox"))
	})
}

// checkDeny wants clients to read the statuses of the hook, but for what the API server puts before their messages.
func checkDeny(t *testing.T, hook *Hook, rewrite func(ctx context.Context, name string) error) {
	statuses := map[string]metav1.Status{
		"mule": {
			Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "no stable for the mule",
			Details: &metav1.StatusDetails{Kind: "stables", Name: "mule"},
		},
		"ox": {
			Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Message: "who are you?",
			Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
		},
	}
	hook.Behave(Behaviour{Deny: statuses})
	for name, want := range statuses {
		var denied *apierrors.StatusError
		if err := rewrite(t.Context(), name); !errors.As(err, &denied) {
			t.Errorf("the rewrite of %s was answered with %v", name, err)
			continue
		}
		want.Status = metav1.StatusFailure
		got := denied.Status()
		got.TypeMeta = metav1.TypeMeta{}
		got.Message = strings.TrimPrefix(got.Message, `admission webhook "stubborn.example.com" denied the request: `)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the rewrite of %s was answered otherwise than by the hook (-hook +client):\n%s", name, diff)
		}
	}
	hook.Behave(Behaviour{})
	must(t, rewrite(t.Context(), "ox"))
}
