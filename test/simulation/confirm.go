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

package simulation

import (
	"slices"
	"time"
)

// confirmAfter is when the observer asks etcd who holds Leases after a look, and how often while the watch is late.
const confirmAfter = 5 * time.Second

// confirm asks etcd whether the processes that were read live on, until that is certain.
func (o *observer) confirm() {
	w := o.m.w
	if o.confirming || o.ledger.ConfirmableFrom().IsZero() {
		return
	}
	o.confirming = true
	w.afterWhenServed(confirmAfter, func() {
		o.confirming = false
		if w.manager != o.m {
			return
		}
		if slices.Equal(o.living, w.cluster.living()) || w.mutant.trustsWatch {
			o.ledger.Confirm(o.m.now())
		}
		o.confirm()
	})
}
