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

package options

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Observation says how to observe what the API servers write. All controllers share one observer.
type Observation struct {
	// SettlePeriod is how long the servers must write one encoding before they count as agreed.
	SettlePeriod time.Duration
	// PollInterval is how often the observer reads what no event announces.
	PollInterval time.Duration
}

// maxSettlePeriod is longer than any request of an API server lasts. With more, migrations would seem to hang.
const maxSettlePeriod = 24 * time.Hour

func defaultObservation() Observation {
	return Observation{SettlePeriod: storageversion.DefaultSettlePeriod, PollInterval: storageversion.DefaultPollInterval}
}

func addObservationFlags(fs *pflag.FlagSet, o *Observation) {
	fs.DurationVar(&o.SettlePeriod, "settle-period", o.SettlePeriod,
		"How long all API servers must write one encoding before the manager relies on it. Writes that they accepted "+
			"before must have ended by then. Set it to their --request-timeout plus their --shutdown-delay-duration plus 5s; "+
			"the default is right for API servers that have neither flag. At most 24h.")
	fs.DurationVar(&o.PollInterval, "poll-interval", o.PollInterval,
		fmt.Sprintf("How often the manager reads what it cannot watch, such as discovery documents, from %v to %v. It also "+
			"reads those of the API servers whenever one of them starts or stops.",
			storageversion.MinPollInterval, storageversion.MaxPollInterval))
}

func validateObservation(o Observation) []error {
	var errs []error
	if o.SettlePeriod < 0 || o.SettlePeriod > maxSettlePeriod {
		errs = append(errs, fmt.Errorf("--settle-period must be from 0s to %v, got %v", maxSettlePeriod, o.SettlePeriod))
	}
	if o.PollInterval < storageversion.MinPollInterval || o.PollInterval > storageversion.MaxPollInterval {
		errs = append(errs, fmt.Errorf("--poll-interval must be from %v to %v, got %v",
			storageversion.MinPollInterval, storageversion.MaxPollInterval, o.PollInterval))
	}
	return errs
}
