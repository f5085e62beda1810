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
	"time"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Periods are the durations that decisions depend on.
type Periods struct {
	// Settle is how long the servers must write one encoding before they count as agreed: as long as a write that an
	// API server accepted earlier can take to land, and the servers to notice a change.
	Settle time.Duration
	// Soak is how long the servers must have written an encoding before a migration to it is created, where the state does
	// not say it.
	Soak time.Duration
	// Patience is how long an observation may be incomplete before a decision reports that.
	Patience time.Duration
	// UnreadPatience is how long an observation may be incomplete before a decision records that a server which lives
	// unread may write any encoding. It is for servers whose Leases no other process takes over.
	UnreadPatience time.Duration
	// Poll is how often the observer reads what it cannot watch. Evidence that cannot be compared with later evidence
	// is valid for that long.
	Poll time.Duration
	// Heartbeat is how often a state is written although nothing changed.
	Heartbeat time.Duration
	// MinBackoff and MaxBackoff bound the time from a failed migration to the next.
	MinBackoff, MaxBackoff time.Duration
}

// DefaultPeriods returns the periods that the flags of the manager start from. Settle, Soak and Poll have flags. The
// others do not depend on the cluster.
func DefaultPeriods() Periods {
	return Periods{
		Settle: storageversion.DefaultSettlePeriod,
		// A server that restarts is unseen for up to half a minute on a slow machine, which needs no report. Until the
		// report nothing is created or proven either.
		Patience: time.Minute,
		// If it were shorter, a restart would migrate all built-in resources. A server advertises its address when its watch
		// caches are full, or after --storage-initialization-timeout (a minute). One that comes when another one has crashed
		// is unread until that one counts as gone, two minutes later.
		// If it were longer, more time would pass in which the only manager can end, and the server leave unread.
		UnreadPatience: 150 * time.Second,
		Poll:           storageversion.DefaultPollInterval,
		// It shows people that the trigger is alive. For 60 resources it costs one write a minute.
		Heartbeat: time.Hour,
		// Most migrations fail for a reason that stays until somebody removes it, and each attempt reads all objects. The
		// first wait is enough to roll out a webhook again. The longest one lets a cluster heal within a day.
		MinBackoff: 5 * time.Minute,
		MaxBackoff: 24 * time.Hour,
	}
}
