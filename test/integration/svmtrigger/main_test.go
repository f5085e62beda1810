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

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

func TestMain(m *testing.M) { framework.Main(m, []string{"sample-apiserver"}) }

// TestTrigger begins with the tests that take longest.
func TestTrigger(t *testing.T) {
	framework.RunTogether(t, 6, []framework.Test{
		{Name: "CustomResources", Servers: 1, Run: onOne(
			1, part{"TheJudgeConvicts", testTheJudgeConvicts}, part{"Definitions", testDefinitions}, part{"Reins", testReins},
			part{"Aggregated", testAggregatedServer},
		)},
		{Name: "Installation", Servers: 1, Run: testInstallation},
		{Name: "UpgradeSeenInDiscovery", Servers: 3, Run: testUpgradeSeenInDiscovery},
		{Name: "UpgradeSeenInStorageVersions", Servers: 2, Run: testUpgradeSeenInStorageVersions},
		{Name: "ServersBehindALoadBalancer", Servers: 2, Run: testServersBehindALoadBalancer},
		{Name: "ServerWithHost", Servers: 1, Run: onHost(
			part{"LeaderChange", testLeaderChange}, part{"Unread", testUnread},
		)},
		{Name: "Restarts", Servers: 2, Run: onOne(2, part{"Restarts", testRestarts})},
	})
}
