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

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/config"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
)

// ObservationOptions are the flags about how what the API servers write is observed.
type ObservationOptions struct {
	SettlePeriod time.Duration
	PollInterval time.Duration
}

// NewObservationOptions returns options with defaults.
func NewObservationOptions() *ObservationOptions {
	return &ObservationOptions{SettlePeriod: svmtrigger.DefaultSettlePeriod, PollInterval: svmtrigger.DefaultPollInterval}
}

// AddFlags adds the flags to fs.
func (o *ObservationOptions) AddFlags(fs *pflag.FlagSet) {
	if o == nil {
		return
	}
	fs.DurationVar(&o.SettlePeriod, "settle-period", o.SettlePeriod,
		"How long the API servers must write one encoding before they count as agreed: as long as a write that began before can take to land, and a moment for them to notice. "+
			"The default is their default request timeout and 5s. Raise it where their --request-timeout is longer, and by their --shutdown-delay-duration.")
	fs.DurationVar(&o.PollInterval, "poll-interval", o.PollInterval,
		fmt.Sprintf("How often to look at what no event tells of, at least %v. What a server writes is looked at anew whenever servers come or go, whatever this says.", svmtrigger.MinPollInterval))
}

// Validate tells all that is wrong.
func (o *ObservationOptions) Validate() []error {
	if o == nil {
		return nil
	}
	var errs []error
	if o.SettlePeriod < 0 {
		errs = append(errs, fmt.Errorf("--settle-period must not be negative, got %v", o.SettlePeriod))
	}
	if o.PollInterval < svmtrigger.MinPollInterval {
		errs = append(errs, fmt.Errorf("--poll-interval must be at least %v, got %v", svmtrigger.MinPollInterval, o.PollInterval))
	}
	return errs
}

// ApplyTo fills the configuration.
func (o *ObservationOptions) ApplyTo(c *config.Observation) {
	if o == nil {
		return
	}
	c.SettlePeriod = o.SettlePeriod
	c.PollInterval = o.PollInterval
}
