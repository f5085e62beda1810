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

package simulation

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
)

// errOutdated says that the decision was made on something that has changed.
var errOutdated = errors.New("what was decided on has changed")

// effectDelay is how long a request may take.
const effectDelay = 200 * time.Millisecond

// job is a decision that is being carried out. The process may end between any two of its effects.
type job struct {
	resource schema.GroupResource
	in       svmtrigger.Input
	again    time.Time
	effects  []func() error
}

// perform carries out one effect after the other. What fails keeps back what comes after it.
func (m *manager) perform(j *job) {
	if len(j.effects) == 0 {
		m.done(j, nil)
		return
	}
	m.w.after(m.w.dice.upTo(effectDelay), func() {
		if m.w.manager != m {
			return
		}
		if err := j.effects[0](); err != nil {
			m.done(j, err)
			return
		}
		j.effects = j.effects[1:]
		m.perform(j)
	})
}

// effects are those of a decision in their order, as the controller has them.
func (m *manager) effects(j *job, d svmtrigger.Decision) {
	api := m.w.api
	add := func(do func() error) {
		j.effects = append(j.effects, func() error { return api.request(do) })
	}
	if create := d.Create; create != nil && m.w.mutant.createsFirst {
		add(func() error { return m.createMigration(j, create) })
	}
	m.stateEffects(j, d, add)
	for _, migration := range d.Delete {
		add(func() error {
			_ = api.deleteMigration(migration.Name, migration.UID) // It is gone, or another one has its name.
			return nil
		})
	}
	if create := d.Create; create != nil && !m.w.mutant.createsFirst {
		add(func() error { return m.createMigration(j, create) })
	}
}

func (m *manager) stateEffects(j *job, d svmtrigger.Decision, add func(func() error)) {
	api, name := m.w.api, nameOf(j.resource)
	remove := func() error {
		err := api.deleteState(name, j.in.State)
		if errors.Is(err, errConflict) {
			return errOutdated
		}
		return nil
	}
	create := func() error {
		spec := migrationv1alpha1.StorageStateSpec{
			Resource: migrationv1alpha1.GroupResource{Group: j.resource.Group, Resource: j.resource.Resource},
		}
		if _, err := api.createState(name, spec, nil); err != nil {
			return errOutdated
		}
		m.wroteAt(streamStates, j.resource)
		return nil
	}
	switch d.StateAction {
	case svmtrigger.CreateState:
		add(create)
	case svmtrigger.UpdateState:
		m.w.judge.decides(m, j.in.State, &d.Status)
		add(func() error {
			if _, err := api.updateState(j.in.State, d.Status); err != nil {
				return errOutdated
			}
			api.writes[name]++
			m.wroteAt(streamStates, j.resource)
			return nil
		})
	case svmtrigger.DeleteState:
		add(remove)
	}
}

// createMigration reads the state first: a creation has no preconditions.
func (m *manager) createMigration(j *job, migration *migrationv1alpha1.StorageVersionMigration) error {
	api := m.w.api
	if state := j.in.State; api.states[state.Name] != state && !m.w.mutant.trustsStates {
		return errOutdated
	}
	m.w.judge.creates(migration)
	if err := api.createMigration(migration); err != nil {
		return err
	}
	m.wroteAt(streamMigrations, j.resource)
	return nil
}

func sameTarget(a, b *migrationv1alpha1.StorageVersionMigration) bool {
	return a.Spec.Target != nil && *a.Spec.Target.Epoch == *b.Spec.Target.Epoch &&
		a.Spec.Target.StorageStateUID == b.Spec.Target.StorageStateUID
}
