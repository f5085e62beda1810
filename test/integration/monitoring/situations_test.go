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

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// TestMonitoring makes the situations that the alerts are about. Those that do not disturb each other happen at the
// same time. Alerts of other situations stay silent, and in the end every panel of the dashboard has something to show.
func TestMonitoring(t *testing.T) {
	c := startCluster(t)
	token := c.reader(t)
	rules := hurried(readRules(t))
	p := startPrometheus(t, c.ControlPlane, c.address(), token, rules)
	a := &alerts{prometheus: p, windows: map[string][]*window{}}
	for _, r := range rules.all() {
		if !slices.Contains(afterDays, r.Alert) {
			a.names = append(a.names, r.Alert)
		}
	}
	// A busy machine may cause these at any time: API servers answer polls late, or do not tell how large etcd is.
	a.open(t, []string{"SVMObservationStale", "SVMAwaitingStorageSpace"})
	var tests []framework.Test
	for _, together := range [][]situation{
		{c.nobodyKnows(a)}, {c.webhookAway()}, {c.serversDisagree(), c.serverUnseen()}, {c.objectsDenied()},
		{c.objectsChanged()}, {c.permissionMissing()}, {c.stateRefused()}, {c.storedVersionsShortened()},
	} {
		tests = append(tests, framework.Test{Name: together[0].name, Servers: 1, Run: func(t *testing.T) {
			for _, s := range together {
				a.play(t, s)
			}
		}})
	}
	framework.RunTogether(t, int64(len(tests)), tests)
	a.play(t, c.spaceUsedUp())

	a.check(t)
	a.checkOthers(t)
	checkPanels(t, p)
	checkNames(t, p)
	drawDashboard(t, p)
	checkOwnMetrics(t, c.metrics(t, token))
}

// nobodyLeads begins with a cluster without a manager.
func (c *cluster) nobodyLeads() situation {
	return situation{
		name:  "nobody leads",
		fires: []string{"SVMControllerManagerDown"},
		begin: func(t *testing.T) { c.define(t, denied, mutated, refused, unwritten, shortened, stuck, large) },
		end:   func(*testing.T) { c.startManager("--auto-migrate=-*") },
	}
}

// nobodyKnows has a new manager that only observes, and that nothing keeps from changing objects.
func (c *cluster) nobodyKnows(a *alerts) situation {
	return situation{
		name:  "a new installation",
		fires: []string{"SVMEncodingsUnknown", "SVMFenceMissing"},
		// A busy API server does not tell how large etcd is, and then no migration writes.
		mayFire: []string{"SVMControllerManagerDown", "SVMAwaitingStorageSpace"},
		begin:   func(t *testing.T) { a.play(t, c.nobodyLeads()) },
		end: func(t *testing.T) {
			c.raiseFence(t)
			c.startManager()
			c.everythingKnown(t) // The alert is silent while no manager runs.
		},
	}
}

func (c *cluster) webhookAway() situation {
	return situation{
		name:  "a conversion webhook is away",
		fires: []string{"SVMMigrationStuck"},
		begin: func(t *testing.T) {
			c.migrated(t, stuck)
			if err := c.hooks.Close(); err != nil {
				t.Fatal(err)
			}
			c.StoreVersion(t, stuck.GroupResource, "v2")
		},
		end: func(t *testing.T) {
			if err := c.hooks.Reopen(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// serversDisagree restarts a server, which others cannot ask meanwhile. The new release serves resources that the old
// one does not. What a process may have written is unknown if it ends within seconds after the manager has met it. The
// alert, and the silence after it, last for longer.
func (c *cluster) serversDisagree() situation {
	restart := func(t *testing.T, version string) {
		t.Helper()
		err := c.second.Restart(func(s *controlplane.Server) { s.EmulatedVersion = version })
		if err != nil {
			t.Fatal(err)
		}
	}
	return situation{
		name:    "one server is upgraded",
		fires:   []string{"SVMServersDisagree"},
		mayFire: []string{"SVMServersUnseen", "SVMObservationStale", "SVMEncodingsUnknown", "SVMMigrationStuck"},
		begin: func(t *testing.T) {
			c.migrated(t, denied) // The manager must know what the servers wrote before.
			restart(t, "")
		},
		end: func(t *testing.T) {
			before := c.holder(t)
			restart(t, oldServer().EmulatedVersion)
			c.isMet(t, before)
			c.everythingKnown(t)
		},
	}
}

// serverUnseen restarts a server that the manager cannot reach. What a process writes that the manager has met is known
// for as long as its Lease lives. Nobody knows what the new one writes, and no migration of a custom resource can end
// meanwhile.
func (c *cluster) serverUnseen() situation {
	host := func(t *testing.T) *controlplane.Host {
		t.Helper()
		host, err := c.Host(c.second.Host())
		if err != nil {
			t.Fatal(err)
		}
		return host
	}
	return situation{
		name:    "a firewall is between the manager and a server",
		fires:   []string{"SVMServersUnseen", "SVMObservationStale"},
		mayFire: []string{"SVMEncodingsUnknown", "SVMMigrationStuck"},
		begin: func(t *testing.T) {
			if err := host(t).CutFrom(c.host); err != nil {
				t.Fatal(err)
			}
			if err := c.second.Restart(nil); err != nil {
				t.Fatal(err)
			}
		},
		end: func(t *testing.T) {
			if err := host(t).HealFrom(c.host); err != nil {
				t.Fatal(err)
			}
			c.everythingKnown(t)
		},
	}
}

func (c *cluster) objectsDenied() situation {
	return situation{
		name:  "a policy denies objects",
		fires: []string{"SVMObjectsDenied"},
		begin: func(t *testing.T) {
			c.migrated(t, denied)
			c.forbid(t, denied.Resource, denied.rule(), "true")
			c.updatesAre(t, denied, func(_ *unstructured.Unstructured, err error) error {
				if err == nil || !strings.Contains(err.Error(), "not today") {
					return fmt.Errorf("an update is answered with %v", err)
				}
				return nil
			})
			c.flip(t, denied)
		},
		end: func(t *testing.T) {
			c.permit(t, denied.Resource)
			c.updatesAre(t, denied, func(_ *unstructured.Unstructured, err error) error { return err })
			c.retry(t, denied)
		},
	}
}

func (c *cluster) objectsChanged() situation {
	labelled := func(want bool) func(*unstructured.Unstructured, error) error {
		return func(object *unstructured.Unstructured, err error) error {
			if err == nil && (object.GetLabels()["mutated"] != "") != want {
				err = fmt.Errorf("updates have the labels %v", object.GetLabels())
			}
			return err
		}
	}
	return situation{
		name:  "a policy changes objects",
		fires: []string{"SVMRewritesChangeObjects"},
		begin: func(t *testing.T) {
			c.migrated(t, mutated)
			c.mutate(t, mutated)
			c.updatesAre(t, mutated, labelled(true))
			c.flip(t, mutated)
		},
		end: func(t *testing.T) {
			bindings := c.Kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
			if err := bindings.Delete(t.Context(), mutated.Resource, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			c.updatesAre(t, mutated, labelled(false))
			c.retry(t, mutated)
		},
	}
}

func (c *cluster) permissionMissing() situation {
	return situation{
		name:  "a permission is missing",
		fires: []string{"SVMMigrationsRefused"},
		begin: func(t *testing.T) {
			c.migrated(t, refused)
			err := c.Kube.RbacV1().ClusterRoleBindings().Delete(t.Context(), guarded, metav1.DeleteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.managerMayList(t, refused, false)
			c.flip(t, refused)
		},
		end: func(t *testing.T) {
			c.bind(t, guarded)
			c.managerMayList(t, refused, true)
			c.retry(t, refused)
		},
	}
}

func (c *cluster) managerMayList(t *testing.T, r resource, may bool) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.first.Config(managerUser))
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := client.Resource(r.WithVersion("v1")).List(ctx, metav1.ListOptions{Limit: 1})
		if (err == nil) != may {
			return fmt.Errorf("listing is answered with %v", err)
		}
		return nil
	})
}

func (c *cluster) stateRefused() situation {
	const rule = "states.example.com"
	webhooks := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	return situation{
		name:  "a webhook refuses a state, and names no code, so that the API server answers 400",
		fires: []string{"SVMStateNotWritten"},
		begin: func(t *testing.T) {
			c.migrated(t, unwritten)
			hook := webhook.Start(t, c.ListenAddress()).Validation() // That of others is away for a while.
			hook.Behave(webhook.Behaviour{Deny: map[string]metav1.Status{unwritten.String(): {Message: "not today"}}})
			about := admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{v1alpha1.GroupName}, APIVersions: []string{"*"}, Resources: []string{"storagestates/status"},
				},
			}
			entry := hook.ValidatingWebhook(rule, about)
			entry.MatchConditions = []admissionregistrationv1.MatchCondition{
				{Name: "one", Expression: fmt.Sprintf("object.metadata.name == %q", unwritten.String())},
			}
			configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: rule},
				Webhooks:   []admissionregistrationv1.ValidatingWebhook{entry},
			}
			if _, err := webhooks.Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			framework.Eventually(t, soon, func(ctx context.Context) error {
				dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
				_, err := c.States().Patch(ctx, unwritten.String(), types.MergePatchType, []byte("{}"), dry, "status")
				if !apierrors.IsBadRequest(err) {
					return fmt.Errorf("a write of the state is answered with %v", err)
				}
				return nil
			})
			c.flip(t, unwritten)
		},
		end: func(t *testing.T) {
			if err := webhooks.Delete(t.Context(), rule, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func (c *cluster) storedVersionsShortened() situation {
	return situation{
		name:  "somebody shortens stored versions",
		fires: []string{"SVMStoredVersionsShortened"},
		begin: func(t *testing.T) {
			c.migrated(t, shortened)
			c.patchState(t, shortened, `{"spec":{"paused":true}}`)
			c.flip(t, shortened)
			framework.Eventually(t, soon, func(ctx context.Context) error {
				state, err := c.States().Get(ctx, shortened.String(), metav1.GetOptions{})
				if err == nil && len(state.Status.PersistedStorageVersionHashes) != 2 {
					err = fmt.Errorf("the state does not list both versions: %v", state.Status.PersistedEncodingVersions)
				}
				return err
			})
			c.shorten(t, shortened)
		},
		end: func(t *testing.T) {
			c.patchState(t, shortened, `{"spec":{"paused":false}}`)
			c.migrated(t, shortened)
		},
	}
}

// spaceUsedUp also has a server ask for patience, twice, and others write before each of the first rewrites. The
// manager counts their writes after the first pause at the latest. The metrics show them for as long as the second one.
func (c *cluster) spaceUsedUp() situation {
	return situation{
		name:    "nobody compacts etcd",
		fires:   []string{"SVMAwaitingStorageSpace"},
		mayFire: []string{"SVMControllerManagerDown", "SVMServersUnseen"}, // while the manager starts
		begin: func(t *testing.T) {
			var rewrites atomic.Int64
			c.gate.Intercept(func(r *http.Request) controlplane.Verdict {
				if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, large.Resource) {
					return controlplane.Verdict{}
				}
				n := rewrites.Add(1)
				if n <= 10 {
					c.othersWrite(t, 20)
				}
				switch n {
				case 5:
					return controlplane.TooManyRequests("8")
				case 10:
					return controlplane.TooManyRequests("20")
				}
				return controlplane.Verdict{}
			})
			c.startManager("--max-storage-growth=1Mi")
			c.flip(t, large)
		},
		end: func(t *testing.T) {
			framework.Eventually(t, soon, func(ctx context.Context) error {
				return errors.Join(c.compact(ctx), c.isMigrated(ctx, large))
			})
		},
	}
}
