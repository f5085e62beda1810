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

// Package controlplane runs real control planes on one machine: etcd and any number of kube-apiservers, for tests, the
// demo and benchmarks. Nothing is faked but the machines.
//
// # Two shapes
//
// One server on loopback needs no privileges and no preparation. It has this machine's host name, hence an identity
// made of it, and it registers no endpoint (an API server cannot advertise a loopback address), so there is no
// EndpointSlice default/kubernetes. Two of them at once are two clusters.
//
// Servers on hosts each have a network, an address, a host name, and so an identity, of their own; etcd has, and so may
// have any program that is run beside them. Hosts are threads of this process in namespaces of their own, wired to a
// bridge in the namespace that the whole process was moved to by Main or EnterNamespaces. Nothing of it is visible to
// the rest of the machine, so any number of such processes run side by side, as root or, with a user namespace, as
// anybody. Where that is not possible New says so with ErrNoHosts; it never does less in silence.
//
// Inside of the namespaces there is no Internet. A program outside reaches the API by OutsideConfig.
//
// # Promises
//
//   - New and Start return when every server says that it is ready, has its identity Lease, and (with hosts) is listed
//     in the Endpoints and the EndpointSlice default/kubernetes.
//   - A server keeps its name, address, port, identity and certificates through Kill, Stop and Restart. Its incarnation
//     changes, and Kubernetes deletes and creates its identity Lease anew when it starts.
//   - Every process ends before Close returns, and, when this process dies first in whatever way, with it: the kernel
//     sees to that. Of a program run beside the servers this goes for the program itself; those that it starts end with
//     it on Close, but not with this process.
//   - Verbs wait for what they do: when Kill and Stop return the process is gone, when Pause returns it has stopped,
//     when Restart returns the server is ready.
//   - Cut loses packets without an answer, as an unplugged cable does; neither side is told. Connections that were open
//     continue after Heal if that comes soon enough. CutFrom does so between two hosts only.
//   - Config, through the balancer, reaches servers that are ready, as far as the balancer knows: it looks once a
//     second, four times while one is not ready, and gives up on a silent one after ten seconds. A client's
//     connection stays with one server.
//   - An Interceptor does what it is told from the first request after Intercept has returned. What it cuts with
//     CutBefore no server has seen, and what it cuts with CutAfter a server has answered.
//   - Stored and Requests only read. Stored reads one revision of etcd.
//   - Files of a temporary folder go with Close, but a failed test's logs.
//
// # What it is not
//
// There are no nodes, no kube-controller-manager unless StartControllerManager runs one, no service network, and the
// ServiceAccount admission plugin is off, because without controllers it would refuse every pod. etcd does not wait for
// the disk, and talks to everybody without encryption.
package controlplane
