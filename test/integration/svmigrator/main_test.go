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
	"testing"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

func TestMain(m *testing.M) {
	framework.Main(m, []string{"sample-apiserver", "kube-controller-manager"})
}

// TestMigrator begins with the tests that take longest.
func TestMigrator(t *testing.T) {
	framework.RunTogether(t, 3, []framework.Test{
		{Name: "Thousands", Servers: 1, Run: testThousands},
		{Name: "StuckMigrations", Servers: 1, Run: testStuckMigrations},
		{Name: "ServerPushesBack", Servers: 1, Run: testServerPushesBack},
		{Name: "ServersKilled", Servers: 1, Run: testServersKilled},
		{Name: "Keys", Servers: 1, Run: testKeys},
		{Name: "LaggingServer", Servers: 2, Run: testLaggingServer},
		{Name: "ServerLagsAtEnd", Servers: 2, Run: testServerLagsAtEnd},
		{Name: "OwnServerLags", Servers: 2, Run: testOwnServerLags},
		{Name: "SpaceInEtcd", Servers: 1, Run: testSpaceInEtcd},
		{Name: "InTreeMigrator", Servers: 1, Run: testInTreeMigrator},
		{Name: "TurnsOfEvents", Servers: 1, Run: testTurnsOfEvents},
		{Name: "MadeByHand", Servers: 1, Run: testMadeByHand},
		{Name: "DeniedInManyWords", Servers: 1, Run: testDeniedInManyWords},
		{Name: "EndCannotBeWritten", Servers: 1, Run: testEndCannotBeWritten},
		{Name: "TogetherWithItsDefinition", Servers: 1, Run: testTogetherWithItsDefinition},
		{Name: "ManagerKilled", Servers: 1, Run: testManagerKilled},
		{Name: "NetworkCut", Servers: 1, Run: testNetworkCut},
		{Name: "ExpiredToken", Servers: 1, Run: testExpiredToken},
		{Name: "SlowList", Servers: 1, Run: testSlowList},
		{Name: "CustomResources", Servers: 1, Run: testCustomResources},
		{Name: "BuiltIn", Servers: 1, Run: testBuiltIn},
		{Name: "ConversionWebhook", Servers: 1, Run: testConversionWebhook},
		{Name: "Aggregated", Servers: 1, Run: testAggregated},
		{Name: "Denied", Servers: 1, Run: testDenied},
		{Name: "ChangedByAdmission", Servers: 1, Run: testChangedByAdmission},
		{Name: "Forbidden", Servers: 1, Run: testForbidden},
		{Name: "Asked", Servers: 1, Run: testAsked},
		{Name: "Tidy", Servers: 1, Run: testTidy},
		{Name: "OthersWrite", Servers: 1, Run: testOthersWrite},
		{Name: "StorageMigrating", Servers: 1, Run: testStorageMigrating},
		{Name: "SuccessHeldBack", Servers: 1, Run: testSuccessHeldBack},
		{Name: "WithTrigger", Servers: 1, Run: testWithTrigger},
	})
}
