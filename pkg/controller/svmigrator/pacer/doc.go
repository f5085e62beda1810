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

// Package pacer decides when the next rewrite may be sent, so that migrations hardly slow down other clients of the API
// servers.
//
// A process has one [Pacer], and one [Lane] for each running migration. A worker acquires a [Permit] before it rewrites
// an object, and releases it afterwards with the [Result] of the write. Dry runs and reads of the object use the same
// permit. Below, a request is a rewrite with all of that; its latency is that of the write alone.
//
// The limit is how many requests may be out at a time. A limit below one means one request at a time with pauses, so
// that requests are out for that share of the time: the lower the limit, the longer the pauses. Pauses are added up,
// and taken when they are 25 ms or more. When others use the server requests take longer, and so do the pauses.
//
// The limiter judges the latencies of a lane in windows of 64 requests, 128 in polite windows:
//
//   - A polite window has the polite limit, 0.65. Others are noticed when the slow requests (the 80th percentile) take
//     more than 1.45 times as long as the quick ones (the 20th), or 1.2 times while others write: requests that queue
//     behind those of others take longer by chance. This needs no memory. It works where others are there before the
//     migration, and others who stay are noticed every time.
//   - Sprints follow a polite window in which nobody was noticed: one after the first such window, 8 after the
//     second, and 32 after each further one. The limit of sprints begins at one, and grows by half, rounded up, while
//     requests take hardly longer than in the polite window. When they take 1.5 times as long, our own requests are
//     too many, and the limit halves, rounded up. If it is one already, a polite window follows. A polite window in
//     which others are noticed halves the number of windows that count. When none is left, the limit of sprints
//     begins at one again.
//   - If it is known that nobody else writes, a window in which nobody was noticed counts as two. A window in which
//     others were noticed is in doubt, because they may only read: it does not count, and 16 sprints of one request at
//     a time follow.
//
// Others write if etcd's revision grows by 10 a second more than what the migrations write. When they begin to, sprints
// end, and a polite window follows. Leases are written in any large cluster, and say nothing about load. So writes do
// not decide alone: where latencies hardly spread, sprints go on beside them.
//
// So beside others who write, a migration goes on at the polite limit, and a window that was calm by chance costs them
// one sprint of one request at a time. Beside others who only read, it mostly sends one request at a time without
// pauses. On a server that nobody else uses, most windows are sprints.
//
// The package promises:
//
//   - At any time at most Options.MaxConcurrent permits are out. In any second at most Options.MaxPerSecond permits are
//     given, plus a fiftieth of that to make up for timers that come late.
//   - Overload (429, 503, a timeout) ends sprints, and halves the limit, to at most the polite limit and at least 0.1.
//     No lane sends a request for a quarter of a second, or for the time that the server asked for.
//   - While no server answers, one request at a time is sent as a probe, at intervals that double up to half a minute.
//   - Lanes that wait get equal shares of the time spent in requests, however long their requests take.
//   - A lane whose requests hang does not hold up the others. While its requests take ten times as long as those of
//     another lane, and more than a quarter of a second, the lane is throttled: it has one request at a time, which
//     does not count against the limit, and its timeouts do not slow down the others. A lane is found slow only by
//     comparison with another one. If all are slow, it is the server. With MaxConcurrent at one there is no second
//     permit, and the others wait.
//   - No permit is lost, even if the context of a caller ends at the moment when it gets a permit, or if a permit is
//     released twice.
//
// Options.Unpaced keeps the limit at MaxConcurrent whatever the latencies, and throttles no lane. The other promises
// stay.
//
// The package has no goroutines of its own, and does not look at the requests.
package pacer
