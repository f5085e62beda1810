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

package storageversion

import "time"

const (
	// DefaultSettlePeriod is the default request timeout of an API server (60 s), in which a write may land in the
	// encoding that was chosen at its start, plus 5 s for the API server to act on what its discovery document says.
	DefaultSettlePeriod = 65 * time.Second
	// DefaultPollInterval is how often API servers publish their StorageVersions again, so that every source is read
	// at least as often.
	DefaultPollInterval = 10 * time.Minute
	// MinPollInterval keeps a mistyped unit from becoming load: a poll asks every server for the documents of every
	// group.
	MinPollInterval = 10 * time.Second
	// maxFrozen is for how long a server may have been frozen before it counted as gone. If a definition has changed
	// since then, a server that comes back may still write what the definition said before.
	maxFrozen = time.Hour
	// MaxPollInterval bounds for how long evidence counts that cannot be compared with later evidence.
	MaxPollInterval = time.Hour
)
