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
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

func TestAct(t *testing.T) {
	state, migration := stateOf(widgets, "7"), migrationOf(widgets, "due")
	status := migrationv1alpha1.StorageStateStatus{Epoch: 3, CurrentStorageVersionHash: "hash="}
	events := []Event{
		{Type: corev1.EventTypeNormal, Reason: "Some", Message: "something"},
		{Type: corev1.EventTypeWarning, Reason: "Other", Message: "100% of something"},
	}
	told := []string{
		"Normal Some something",
		"Warning Other 100% of something",
	}
	bound := func(epoch int64) *migrationv1alpha1.StorageVersionMigration {
		m := migrationOf(widgets, "due")
		m.Spec.Target = &migrationv1alpha1.MigrationTarget{Epoch: &epoch, StorageStateUID: state.UID}
		return m
	}
	kept := bound(3)
	kept.DeletionTimestamp, kept.Finalizers = &metav1.Time{Time: start}, []string{"example.com/kept"}
	moved := stateOf(widgets, "8")
	var many []*migrationv1alpha1.StorageVersionMigration
	var deletions []string
	for i := range maxDeletions + 1 {
		name := fmt.Sprintf("outdated-%02d", i)
		many = append(many, migrationOf(widgets, name))
		deletions = append(deletions, fmt.Sprintf("delete storageversionmigrations %[1]s if uid-%[1]s@5", name))
	}

	for name, tc := range map[string]struct {
		stored   []runtime.Object
		state    *migrationv1alpha1.StorageState
		cached   []*migrationv1alpha1.StorageVersionMigration
		decision Decision
		refuse   map[string]error // by verb and resource
		want     []string
		told     []string
		outdated bool
		fails    string
	}{
		"nothing": {
			state: state, decision: Decision{},
		},
		"a state is created": {
			decision: Decision{StateAction: CreateState},
			want:     []string{"create storagestates widgets.example.com"},
		},
		"a state is there already, only not in the cache": {
			stored:   []runtime.Object{state},
			decision: Decision{StateAction: CreateState},
			want:     []string{"create storagestates widgets.example.com"},
			outdated: true,
		},
		"a status is written, then told": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{StateAction: UpdateState, Status: status, Events: events},
			want:     []string{"update storagestates/status widgets.example.com if uid-widgets@7"},
			told:     told,
		},
		"a status that could not be written is not told": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{StateAction: UpdateState, Status: status, Events: events},
			refuse:   map[string]error{"update storagestates": apierrors.NewInternalError(errors.New("etcd"))},
			want:     []string{"update storagestates/status widgets.example.com if uid-widgets@7"},
			fails:    `Update of storage state "widgets.example.com"`,
		},
		"a status that the API server refuses": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{StateAction: UpdateState, Status: status, Events: events},
			refuse: map[string]error{"update storagestates": apierrors.NewInvalid(
				migrationv1alpha1.SchemeGroupVersion.WithKind("StorageState").GroupKind(), "widgets.example.com", nil)},
			want: []string{"update storagestates/status widgets.example.com if uid-widgets@7"},
			told: []string{"Warning StateNotWritten The API server refuses to store the StorageState, so its status " +
				`is out of date: StorageState.migration.k8s.io "widgets.example.com" is invalid`},
			fails: `Update of storage state "widgets.example.com"`,
		},
		"a state that the API server refuses to create": {
			decision: Decision{StateAction: CreateState},
			refuse: map[string]error{"create storagestates": apierrors.NewForbidden(
				migrationv1alpha1.Resource("storagestates"), "widgets.example.com", errors.New("not today"))},
			want: []string{"create storagestates widgets.example.com"},
			told: []string{"Warning StateNotWritten The API server refuses to store the StorageState, so its status " +
				`is out of date: storagestates.migration.k8s.io "widgets.example.com" is forbidden: not today`},
			fails: `Create of storage state "widgets.example.com"`,
		},
		"somebody else wrote the state": {
			stored: []runtime.Object{moved}, state: state,
			decision: Decision{StateAction: UpdateState, Status: status, Events: events},
			want:     []string{"update storagestates/status widgets.example.com if uid-widgets@7"},
			outdated: true,
		},
		"somebody else deleted the state": {
			state:    state,
			decision: Decision{StateAction: UpdateState, Status: status, Events: events},
			want:     []string{"update storagestates/status widgets.example.com if uid-widgets@7"},
			outdated: true,
		},
		"the API is gone": {
			state:    state,
			decision: Decision{StateAction: UpdateState, Status: status, Events: events},
			refuse:   map[string]error{"update storagestates": notServed("update")},
			want:     []string{"update storagestates/status widgets.example.com if uid-widgets@7"},
			fails:    `Update of storage state "widgets.example.com"`,
		},
		"a state is deleted": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{StateAction: DeleteState},
			want:     []string{"delete storagestates widgets.example.com if uid-widgets@7"},
		},
		"migrations are deleted after the state was written": {
			stored: []runtime.Object{state, migrationOf(widgets, "one"), migrationOf(widgets, "two")}, state: state,
			decision: Decision{StateAction: UpdateState, Status: status,
				Delete: []*migrationv1alpha1.StorageVersionMigration{migrationOf(widgets, "one"), migrationOf(widgets, "two")}},
			want: []string{
				"update storagestates/status widgets.example.com if uid-widgets@7",
				"delete storageversionmigrations one if uid-one@5",
				"delete storageversionmigrations two if uid-two@5",
			},
		},
		"migrations to be deleted are gone, or others by now": {
			stored: []runtime.Object{state, &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "two",
				UID: "somebody's"}}}, state: state,
			decision: Decision{Delete: []*migrationv1alpha1.StorageVersionMigration{
				migrationOf(widgets, "one"), migrationOf(widgets, "two"),
			}},
			want: []string{
				"delete storageversionmigrations one if uid-one@5",
				"delete storageversionmigrations two if uid-two@5",
			},
		},
		"a migration that the API server refuses to delete": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{
				Delete: []*migrationv1alpha1.StorageVersionMigration{migrationOf(widgets, "one")}, Create: migration,
			},
			refuse: map[string]error{"delete storageversionmigrations": apierrors.NewForbidden(
				migrationv1alpha1.Resource("storageversionmigrations"), "one", errors.New("not today"))},
			want: []string{"delete storageversionmigrations one if uid-one@5"},
			told: []string{`Warning MigrationRefused Deleting migration "one": ` +
				`storageversionmigrations.migration.k8s.io "one" is forbidden: not today.`},
			fails: `deleting migration "one"`,
		},
		"a migration that the API server refuses to create": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{Create: migration},
			refuse: map[string]error{"create storageversionmigrations": apierrors.NewForbidden(
				migrationv1alpha1.Resource("storageversionmigrations"), "due", errors.New("not today"))},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
			told: []string{`Warning MigrationRefused Creating migration "due": ` +
				`storageversionmigrations.migration.k8s.io "due" is forbidden: not today.`},
			fails: `creating migration "due"`,
		},
		"migrations without a state": {
			stored:   []runtime.Object{migrationOf(widgets, "one")},
			decision: Decision{Delete: []*migrationv1alpha1.StorageVersionMigration{migrationOf(widgets, "one")}},
			want: []string{
				"get storagestates widgets.example.com",
				"delete storageversionmigrations one if uid-one@5",
			},
		},
		"a migration without a state that the API server refuses to delete": {
			stored:   []runtime.Object{migrationOf(widgets, "one")},
			decision: Decision{Delete: []*migrationv1alpha1.StorageVersionMigration{migrationOf(widgets, "one")}},
			refuse: map[string]error{"delete storageversionmigrations": apierrors.NewForbidden(
				migrationv1alpha1.Resource("storageversionmigrations"), "one", errors.New("not today"))},
			want: []string{
				"get storagestates widgets.example.com",
				"delete storageversionmigrations one if uid-one@5",
			},
			told: []string{`Warning MigrationRefused Deleting migration "one": ` +
				`storageversionmigrations.migration.k8s.io "one" is forbidden: not today.`},
			fails: `deleting migration "one"`,
		},
		"migrations whose state is there, only not in the cache": {
			stored:   []runtime.Object{state, migrationOf(widgets, "one")},
			decision: Decision{Delete: []*migrationv1alpha1.StorageVersionMigration{migrationOf(widgets, "one")}},
			want:     []string{"get storagestates widgets.example.com"},
			outdated: true,
		},
		"no more than a few are deleted at a time": {
			stored: []runtime.Object{state}, state: state, decision: Decision{Delete: many, Create: migration},
			want: deletions[:maxDeletions], outdated: true,
		},
		"a migration is created while the state is what was decided on": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{Create: migration},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
		},
		"no migration for a state that has changed": {
			stored: []runtime.Object{moved}, state: state,
			decision: Decision{Create: migration},
			want:     []string{"get storagestates widgets.example.com"},
			outdated: true,
		},
		"no migration for a state that is gone": {
			state:    state,
			decision: Decision{Create: migration},
			want:     []string{"get storagestates widgets.example.com"},
			outdated: true,
		},
		"no migration for a state that cannot be read": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{Create: migration},
			refuse:   map[string]error{"get storagestates": apierrors.NewTooManyRequests("later", 1)},
			want:     []string{"get storagestates widgets.example.com"},
			fails:    `creating migration "due": getting storage state "widgets.example.com"`,
		},
		"the migration was created before": {
			stored: []runtime.Object{state, migrationOf(widgets, "due")}, state: state,
			decision: Decision{Create: migration},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
			outdated: true,
		},
		"somebody else's migration has the name": {
			stored: []runtime.Object{state, migrationOf(gadgets, "due")}, state: state,
			cached:   []*migrationv1alpha1.StorageVersionMigration{migrationOf(gadgets, "due")},
			decision: Decision{Create: migration},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
			told: []string{`Warning MigrationRefused Creating migration "due": storageversionmigrations.migration.k8s.io ` +
				`"due" already exists, and the trigger did not create it. Delete it.`},
			fails: `creating migration "due": storageversionmigrations.migration.k8s.io "due" already exists`,
		},
		"the attempt is in the cache by now": {
			stored: []runtime.Object{state, bound(3)}, state: state,
			cached:   []*migrationv1alpha1.StorageVersionMigration{bound(3)},
			decision: Decision{Create: bound(3)},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
			outdated: true,
		},
		"a finalizer keeps the attempt before": {
			stored: []runtime.Object{state, kept}, state: state,
			cached:   []*migrationv1alpha1.StorageVersionMigration{kept},
			decision: Decision{Create: bound(3)},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
			told: []string{`Warning MigrationRefused Creating migration "due": storageversionmigrations.migration.k8s.io ` +
				`"due" already exists. It is being deleted, and finalizers keep it: ["example.com/kept"].`},
			fails: `creating migration "due": storageversionmigrations.migration.k8s.io "due" already exists`,
		},
		"somebody else's migration of the resource, in a made-up epoch, has the name": {
			stored: []runtime.Object{state, bound(9)}, state: state,
			cached:   []*migrationv1alpha1.StorageVersionMigration{bound(9)},
			decision: Decision{Create: bound(3)},
			want: []string{
				"get storagestates widgets.example.com",
				"create storageversionmigrations due",
			},
			told: []string{`Warning MigrationRefused Creating migration "due": storageversionmigrations.migration.k8s.io ` +
				`"due" already exists, and the trigger did not create it. Delete it.`},
			fails: `creating migration "due": storageversionmigrations.migration.k8s.io "due" already exists`,
		},
		"no migration after a deletion that failed": {
			stored: []runtime.Object{state}, state: state,
			decision: Decision{
				Delete: []*migrationv1alpha1.StorageVersionMigration{migrationOf(widgets, "one")}, Create: migration,
			},
			refuse: map[string]error{"delete storageversionmigrations": apierrors.NewInternalError(errors.New("etcd"))},
			want:   []string{"delete storageversionmigrations one if uid-one@5"},
			fails:  `deleting migration "one"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tc.stored...)
			f.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				err, refused := tc.refuse[action.GetVerb()+" "+action.GetResource().Resource]
				return refused, nil, err
			})
			for _, m := range tc.cached {
				f.cache(t, m)
			}
			in := Input{State: tc.state, Migrations: tc.cached}
			in.Observation.Resource = widgets
			err := f.act(f.ctx, in, tc.decision)
			if diff := cmp.Diff(tc.want, f.requests()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.told, f.told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			checkError(t, err, tc.outdated, tc.fails)
		})
	}
}

func checkError(t *testing.T, err error, outdated bool, message string) {
	t.Helper()
	switch {
	case outdated && !errors.Is(err, controller.ErrOutdated):
		t.Errorf("got %v, want to decide anew", err)
	case !outdated && errors.Is(err, controller.ErrOutdated):
		t.Errorf("decides anew: %v", err)
	case message != "" && (err == nil || len(err.Error()) < len(message) || err.Error()[:len(message)] != message):
		t.Errorf("got %v, want an error that begins with %q", err, message)
	case message == "" && !outdated && err != nil:
		t.Error(err)
	}
}

func notServed(verb string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, verb,
		migrationv1alpha1.Resource("storageversionmigrations"), "", "404 page not found",
		0, true)
}
