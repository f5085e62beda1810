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

// Package webhook is a webhook server that runs in the process of a test. It converts custom resources, validates
// admission requests, and misbehaves on demand.
//
// A Server has a certificate of its own and any number of Hooks. A Hook provides the CustomResourceConversion of a CRD,
// or a ValidatingWebhook. API servers reach the Server if it listens at ControlPlane.ListenAddress, with and without
// hosts of their own.
//
// # Promises
//
//   - Behave changes the behaviour at any time. It applies to each request that arrives after Behave has returned, and
//     to those that hang.
//   - Close cuts all connections. The port stays closed until Reopen opens the same port.
//   - When Close returns, all goroutines have ended.
//   - A hook counts a request when it has read it, before it does anything else with it.
package webhook
