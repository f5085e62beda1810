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
	framework.RunTogether(t, 7, []framework.Test{
		{Name: "Lagging", Servers: 2, Run: testLagging},
		{Name: "Admission", Servers: 1, Run: onOne(
			part{"DeniedInManyWords", testDeniedInManyWords}, part{"Denied", testDenied},
			part{"ConversionWebhook", testConversionWebhook}, part{"ChangedByAdmission", testChangedByAdmission},
		)},
		{Name: "Beside", Servers: 1, Run: onOne(
			part{"WithTrigger", testWithTrigger}, part{"StorageMigrating", testStorageMigrating},
			part{"Tidy", testTidy}, part{"InTreeMigrator", testInTreeMigrator},
		)},
		{Name: "Asked", Servers: 1, Run: onOne(
			part{"Asked", testAsked}, part{"TurnsOfEvents", testTurnsOfEvents}, part{"TakenVersion", testTakenVersion},
			part{"TakenBuiltIn", testTakenBuiltIn},
		)},
		{Name: "People", Servers: 1, Run: onOne(
			part{"MadeByHand", testMadeByHand},
			part{"TogetherWithItsDefinition", testTogetherWithItsDefinition}, part{"OtherVersion", testOtherVersion},
			part{"OtherScope", testOtherScope},
			part{"LostFields", testLostFields}, part{"AddedDefaults", testAddedDefaults},
			part{"SchemaThatGetsAField", testSchemaThatGetsAField}, part{"OthersWrite", testOthersWrite},
		)},
		{Name: "Keys", Servers: 1, Run: testKeys},
		{Name: "WithoutCache", Servers: 1, Run: testWithoutCache},
		{Name: "Answers", Servers: 1, Run: onHost(
			part{"ServerPushesBack", testServerPushesBack}, part{"SuccessHeldBack", testSuccessHeldBack},
			part{"DefinitionChangedBefore", testDefinitionChangedBefore},
			part{"EndCannotBeWritten", testEndCannotBeWritten}, part{"StatusCannotBeWritten", testStatusCannotBeWritten},
		)},
		{Name: "StuckMigrations", Servers: 1, Run: testStuckMigrations},
		{Name: "Killed", Servers: 1, Run: onHost(
			part{"Manager", testManagerKilled}, part{"Each", testEachKilled}, part{"NetworkCut", testNetworkCut},
		)},
		{Name: "Aggregated", Servers: 1, Run: onOne(
			part{"Migrated", testAggregated}, part{"FullBehind", testFullBehind},
		)},
		{Name: "SpaceInEtcd", Servers: 1, Run: testSpaceInEtcd},
		{Name: "Forbidden", Servers: 1, Run: testForbidden},
		{Name: "BuiltIn", Servers: 1, Run: testBuiltIn},
	})
}
