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

// Package pacer decides when the next rewrite may be sent, so that the other clients of the API servers do not feel the
// migrations.
//
// There is one [Pacer] in a process and one [Lane] for each running migration. A worker acquires a [Place] before each
// request and releases it after, saying how it went.
//
// It promises
//
//   - No more places are out at a time than Options.MaxConcurrent, and no more are given away in any second than
//     Options.MaxPerSecond, and a fiftieth of that where timers came late.
//   - Concurrency climbs only while requests take about as long as they do alone, and falls at once when they take
//     longer, time out, or are refused. It is a real number: 1.3 means a second request at a time for three tenths of the time, 0.1
//     means nine tenths of the time without any. It never falls to nothing.
//   - Nobody sends before a time that a server asked to wait for, whichever request it told.
//   - While no server can be reached one request at a time finds out whether that is still so, after times that
//     double to half a minute.
//   - Lanes that wait get equal shares of the time spent in requests, whatever their requests cost, unless they are set
//     aside. A lane that is slow holds up its own migration.
//   - A place is never lost: not when a wait is given up at the moment it ends, nor when a lane is closed or a place is
//     released twice.
//
// How long requests take alone is learned for each lane, because resources differ, and learned anew every few seconds
// by sending one at a time for a moment: what is measured among one's own requests would be taken for the
// server's best in the end, and the pace would creep up.
//
// A lane is set aside while its requests take sixteen times as long as those of the quickest other lane that was measured
// in the last half minute, and more than a quarter of a second: a webhook of that resource is slow, and not the server. It
// is known as soon as nothing came back for so long, and not only when a timeout ends. What is out in a lane that is set
// aside does not count against the limit, and how long it takes changes the limit as little as its timeouts do. A refusal
// that names a time counts for all. Each such lane has one place at most, and all together half as many as the limit,
// because it may be the server after all that is slow with them, and a tenth of MaxConcurrent, because the others need
// the rest. Where that is less than one place for each they pause after each request, at most a minute. They get all that
// others get when nobody else is quicker. With Unpaced no lane is set aside.
//
// Only one among others can be told to be slow. A lane without company, or all lanes at once, that become slow are a slow
// server.
//
// It has no goroutine of its own. It never looks at the requests themselves.
package pacer
