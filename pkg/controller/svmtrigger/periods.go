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

const (
	// patience covers every restart of a server, which needs no report: the server puts back a Lease that was deleted
	// within 10.4 s, and answers some seconds before or after its Lease exists, on a slow machine half a minute. To doubt
	// too early costs a migration of every built-in resource. To doubt later leaves a server that nobody can ask
	// unreported for longer, and nothing is created or proven meanwhile.
	patience = time.Minute
	// heartbeat shows people that the trigger is alive. For 60 resources it costs one write a minute.
	heartbeat = time.Hour
	// Most migrations fail for a reason that stays until somebody removes it, and each attempt reads all objects.
	// minBackoff is enough to roll out a webhook again. maxBackoff lets a cluster heal within a day.
	minBackoff = 5 * time.Minute
	maxBackoff = 24 * time.Hour
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
		Settle:     storageversion.DefaultSettlePeriod,
		Patience:   patience,
		Poll:       storageversion.DefaultPollInterval,
		Heartbeat:  heartbeat,
		MinBackoff: minBackoff,
		MaxBackoff: maxBackoff,
	}
}
