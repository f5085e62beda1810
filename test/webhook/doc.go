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

// Package webhook is a webhook server for tests, in the process of the test: it converts custom resources and validates admission, and
// misbehaves on demand.
//
// A Server has a certificate of its own and any number of Hooks, which are handed out as the CustomResourceConversion of a CRD and as a
// ValidatingWebhook. API servers reach it if it listens at ControlPlane.ListenAddress, with and without hosts of their own.
//
// # Promises
//
//   - How a hook behaves can be changed at any time, and goes for every request that comes after Behave has returned, and for those that hang.
//   - Close cuts every connection and leaves the port closed until Reopen, which opens the same one.
//   - Nothing runs anymore when Close returns.
//   - A request is counted when it was read, before anything else happens to it.
package webhook
