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
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// testSlowList has a conversion webhook that takes its time for each object, and an API server that gives up on a
// request after five seconds. A chunk of forty takes eight. The server lists from etcd, as all do that are too old to
// list chunks from their caches, which they fill without such a limit. The limit stays, so this is the last part.
func testSlowList(t *testing.T, c *cluster) {
	const objects = 40
	hook := webhook.Start(t, c.ListenAddress()).Conversion(webhook.SameFields)
	snails := newCustom("snails", "Snail")
	c.define(t, snails, convertedBy(hook))
	c.fill(t, snails, "snail", objects)
	c.flip(t, snails, "v2")
	judge := c.judge(t, snails.GroupResource)
	hook.Behave(webhook.Behaviour{Delay: 200 * time.Millisecond})
	c.restart(t, func(s *controlplane.Server) { s.ExtraArgs = append(s.ExtraArgs, "--request-timeout=5s") })
	c.startManager(t, "manager", "--migration-chunk-size=40")
	c.migrate(t, "snails", snails.WithVersion(""))
	m := c.ended(t, "snails", soon)
	mustSucceed(t, m)
	hook.Behave(webhook.Behaviour{})
	judge.stored(t, snails.encoding("v2"))
	judge.onlyEncodings(t, 1)
}
