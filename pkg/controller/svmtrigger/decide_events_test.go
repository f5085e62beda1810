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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestEncodingOfEventsThatHaveExpired has a server that writes events in another encoding after an upgrade. Nothing
// rewrites them, and only the end of the migration says that those in the old encoding have expired.
func TestEncodingOfEventsThatHaveExpired(t *testing.T) {
	const expire = migrationv1alpha1.StateReasonObjectsExpire
	l := newLife(t)
	l.unwatched()
	l.resource = schema.GroupResource{Resource: "events"}
	writes := func(process, version, group string) string {
		servers := []storageversion.Process{{Identity: "a", Incarnation: process}}
		hash := storageversion.Hash(schema.GroupVersion{Group: group, Version: "v1"}, "Event")
		l.ledger.SetServers(l.in.Now, servers, true)
		l.ledger.SetLook(l.in.Now, storageversion.Look{LivingServers: storageversion.LivingServers{Living: servers},
			Documents: map[string]storageversion.Document{"10.0.0.1": {
				Version: version, Resources: map[schema.GroupResource]storageversion.Resource{
					l.resource: {Kind: "Event", Versions: []string{"v1"}, Hash: hash, Migratable: true},
				},
			}}})
		l.decide()
		return hash
	}
	before := writes("1", "v1.36.0", "")
	after := writes("2", "v1.37.0", "events.k8s.io")
	l.after(time.Minute)
	l.begins(l.migration())
	l.after(2 * time.Hour)
	l.expect(2, after, storageversion.Unknown, before, after)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, expire, expire)
	l.succeeds()
	l.after(time.Second)
	l.expect(2, after, after)
}
