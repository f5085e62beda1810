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

// Package stored tells from the bytes in etcd how API servers have stored objects: in which version, and with which
// encryption key. It needs no API server, and reads etcd without writing to it.
//
// [FormOf] reads one value, without a request. [Count] reads every value of a cluster, at one revision of etcd and a
// few at a time, and counts them by place and form.
package stored
