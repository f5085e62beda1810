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
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// validateUpdate is what the definition of StorageStates allows, in the order of docs/designs/api.md.
func validateUpdate(before, after *migrationv1alpha1.StorageStateStatus) error {
	persisted, current := after.PersistedStorageVersionHashes, after.CurrentStorageVersionHash
	in := func(list []string) func(string) bool { return func(h string) bool { return !slices.Contains(list, h) } }
	switch {
	case current != "" && current != migrationv1alpha1.Unknown && !slices.Contains(persisted, current) &&
		!slices.Contains(persisted, migrationv1alpha1.Unknown):
		return errors.New("the current encoding is not among the persisted ones")
	case len(before.PersistedStorageVersionHashes) > 0 && len(persisted) == 0:
		return errors.New("the persisted encodings are emptied")
	case len(before.PersistedStorageVersionHashes) > 0 && slices.ContainsFunc(before.PersistedStorageVersionHashes,
		in(persisted)) &&
		!slices.Contains(persisted, migrationv1alpha1.Unknown) &&
		!(current != "" && current == before.CurrentStorageVersionHash && !slices.ContainsFunc(persisted,
			in([]string{current}))):
		return errors.New("an entry leaves the persisted encodings, and more remains than the current one, " +
			"or that was not current before")
	case after.Epoch < before.Epoch || after.Epoch < 1:
		return errors.New("the epoch goes down")
	case len(persisted) > migrationv1alpha1.MaxPersistedStorageVersionHashes,
		len(after.Encodings) > migrationv1alpha1.MaxEncodings:
		return errors.New("a list is too long")
	}
	return validateForm(after)
}

// validateForm refuses what would come back in another form than it was sent.
func validateForm(status *migrationv1alpha1.StorageStateStatus) error {
	times := []*metav1.Time{&status.LastHeartbeatTime}
	if status.Evidence != nil {
		times = append(times, status.Evidence.FirstObservedTime)
		if servers := status.Evidence.Servers; len(servers) > 0 && hasDuplicates(servers,
			func(s migrationv1alpha1.ServerEvidence) string { return s.Identity }) {
			return errors.New("a server twice in the evidence")
		}
		if endpoints := status.Evidence.Endpoints; hasDuplicates(endpoints,
			func(e migrationv1alpha1.EndpointEvidence) string { return e.Address }) {
			return errors.New("an address twice in the evidence")
		}
	}
	if status.Backoff != nil {
		times = append(times, &status.Backoff.LastFailureTime, status.Backoff.NextAttemptTime)
	}
	for i := range status.Conditions {
		times = append(times, &status.Conditions[i].LastTransitionTime)
	}
	for _, t := range times {
		if t != nil && t.Nanosecond() != 0 {
			return fmt.Errorf("the time %v is stored less precisely", t)
		}
	}
	if hasDuplicates(status.Encodings, func(e migrationv1alpha1.StorageEncoding) string { return e.StorageVersionHash }) {
		return errors.New("an encoding twice")
	}
	return nil
}

func hasDuplicates[T any](list []T, key func(T) string) bool {
	seen := map[string]struct{}{}
	for _, item := range list {
		seen[key(item)] = struct{}{}
	}
	return len(seen) < len(list)
}

func statusInWords(status *migrationv1alpha1.StorageStateStatus) string {
	var persisted []string
	for _, hash := range status.PersistedStorageVersionHashes {
		persisted = append(persisted, words(hash))
	}
	text := fmt.Sprintf("epoch %d, current %s, persisted %v", status.Epoch, words(status.CurrentStorageVersionHash),
		persisted)
	if status.Migration != nil {
		text += fmt.Sprintf(", migration %s (%s)", status.Migration.Name, status.Migration.UID)
	}
	if status.Backoff != nil {
		text += fmt.Sprintf(", %d failures", status.Backoff.Failures)
	}
	for _, condition := range []string{migrationv1alpha1.StorageStateAgreed, migrationv1alpha1.StorageStateMigrated} {
		if c := meta.FindStatusCondition(status.Conditions, condition); c != nil {
			text += ", " + c.Reason
		}
	}
	if status.Evidence != nil {
		text += ", evidence " + evidenceInWords(status.Evidence)
	}
	return text
}

func evidenceInWords(e *migrationv1alpha1.StorageEvidence) string {
	text := string(e.Source)
	for _, server := range e.Servers {
		text += " " + server.Identity + "=" + server.Incarnation
	}
	if e.StorageVersion != nil {
		text += " at " + e.StorageVersion.ResourceVersion
	}
	if d := e.CustomResourceDefinition; d != nil {
		text += fmt.Sprintf(" generation %d %v", d.Generation, d.StoredVersions)
	}
	if e.FirstObservedTime != nil {
		text += " since " + e.FirstObservedTime.Sub(beginning).String()
	}
	return text
}

func migrationInWords(m *migrationv1alpha1.StorageVersionMigration) string {
	parts := []string{m.Spec.Resource.Resource}
	target := func(name string, t *migrationv1alpha1.MigrationTarget) {
		if t != nil && t.Epoch != nil {
			parts = append(parts, fmt.Sprintf("%s %s in epoch %d of %s", name, words(t.StorageVersionHash), *t.Epoch,
				t.StorageStateUID))
		}
	}
	target("wants", m.Spec.Target)
	target("took", m.Status.Target)
	for _, condition := range m.Status.Conditions {
		if condition.Status == corev1.ConditionTrue {
			parts = append(parts, string(condition.Type))
		}
	}
	return strings.Join(parts, ", ")
}
