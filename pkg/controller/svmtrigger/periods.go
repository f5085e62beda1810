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

import "time"

const (
	// DefaultSettlePeriod is the time that a write can spend in a server with its default request timeout (60 s), in
	// a slow admission webhook for instance, after it was given the encoding that it is stored in, and a moment for
	// all servers to notice a change of a CustomResourceDefinition.
	DefaultSettlePeriod = 65 * time.Second
	// DefaultPollInterval is how often API servers publish their StorageVersions anew, so that no source is looked at
	// less often than another one repeats itself.
	DefaultPollInterval = 10 * time.Minute
	// MinPollInterval keeps a mistyped unit from becoming load: a look asks every server for the documents of every
	// group.
	MinPollInterval = 10 * time.Second
	// hold covers what happens in every restart of a server, in which there is nothing to tell: a Lease that was
	// deleted is put back within 10.4 s, and a server listens some seconds before or after its Lease is there.
	hold = 15 * time.Second
	// heartbeat is often enough for a person who wonders whether anybody still looks, and 60 resources then cost one
	// write a minute.
	heartbeat = time.Hour
	// A migration that failed mostly failed for a reason that stays until somebody does something, and each attempt
	// goes through all objects. minBackoff is enough for a webhook to be rolled out again; a day is the longest that
	// nobody looks.
	minBackoff = 5 * time.Minute
	maxBackoff = 24 * time.Hour
)

// DefaultPeriods are those that the manager's flags start from. Only Settle and Poll have flags: the others depend on
// nothing that differs from one cluster to the next.
func DefaultPeriods() Periods {
	return Periods{
		Settle:     DefaultSettlePeriod,
		Hold:       hold,
		Poll:       DefaultPollInterval,
		Heartbeat:  heartbeat,
		MinBackoff: minBackoff,
		MaxBackoff: maxBackoff,
	}
}
