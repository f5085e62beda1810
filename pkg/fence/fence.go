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

// Package fence knows the ValidatingAdmissionPolicy that lets the manager send only writes that change nothing
// (build/manifests/fence). It recognizes the policy's refusals, and checks whether the policy is in force.
//
// A policy that exists need not be in force: its binding may be missing, or it may be about another user. So the check
// looks at neither. It sends a change as a dry run, which the fence must refuse.
package fence

import "strings"

const (
	// Policy is the name of the policy and of its binding.
	Policy = "svm-controller-manager-fence"
	// Label is on the Lease of the leader. Its value is the State that the leader has found.
	Label = "migration.k8s.io/fence"

	// DeniedChange stands in messages for what a rewrite would change: the answer of the API server does not say it.
	DeniedChange = "more than its encoding, which the fence refuses"

	// denialText is what the policy says about a change. If it cannot be evaluated, it says something else.
	denialText = "svm-controller-manager may only send writes that change nothing"
)

// State is whether the fence is in force for this process.
type State string

const (
	// Standing means that the API server refuses changes.
	Standing State = "Standing"
	// Missing means that the API server accepts changes: only the program itself makes sure that there are none.
	Missing State = "Missing"
	// Unknown means that the API server did not accept the change, but not because of the fence.
	Unknown State = "Unknown"
)

// Denies reports whether the message of an API server says that the fence refuses a change.
func Denies(message string) bool {
	return strings.Contains(message, "ValidatingAdmissionPolicy '"+Policy+"'") &&
		strings.Contains(message, " denied request: "+denialText)
}
