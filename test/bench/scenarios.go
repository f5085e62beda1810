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

package main

// scenario is one situation in which contenders are compared.
type scenario struct {
	name, title string
	// objects is how many there are, at scale 1.
	objects int
	// others is how many operations a second the other client does.
	others float64
	// denied means that the API server refuses to write one object in a hundred.
	denied bool
	// killed means that the contender is killed when half of the objects are written, and started again.
	killed bool
	// rounds is how often each contender is measured, unless -rounds says it.
	rounds int
	// unattended means that nobody asks for the migration.
	unattended bool
	// server are more flags of kube-apiserver.
	server     []string
	contenders []string
	measures   []measure // in the order of its table
}

var (
	speed = []measure{
		perSecond, took, waited, serverCPU, etcdCPU, clientCPU, peakMemory, received, sent, requests, written,
	}
	// ofMany is without the servers' CPU: after a change of the storage version, a server is busy with a new cache of all
	// objects for longer than what it needs anyway is measured.
	ofMany  = []measure{perSecond, took, waited, clientCPU, peakMemory, received, sent, requests, written}
	beside  = []measure{quietP50, duringP50, quietP99, duringP99, slower, perSecond, serverCPU}
	lasting = []measure{quietP50, duringP50, quietP99, duringP99, slower, drift, perSecond, took} // See ofMany.
	damage  = []measure{outcomeShare, named, left, forgotten, requests, took}
	restart = []measure{outcomeShare, left, written, requests, took}
	ready   = []measure{hourly, noticed, detected, finished}
)

// scenarios are all that can be measured. The last one is measured only if it is named.
var scenarios = []scenario{
	{
		name: "alone", title: "5,000 objects, nobody else there", objects: 5000, rounds: 3, measures: speed,
		contenders: []string{inTree, ours, oursLifted, ksvm, ksvmLifted, naked1, naked64},
	},
	{
		name: "beside-50", title: "2,500 objects, another client at 50 operations a second", objects: 2500, others: 50,
		rounds: 5, contenders: []string{inTree, ours, ksvm}, measures: beside,
	},
	{
		name: "beside-150", title: "2,500 objects, another client at 150 operations a second", objects: 2500, others: 150,
		rounds: 5, contenders: []string{inTree, ours, ksvm}, measures: beside,
	},
	{
		name: "denied", title: "2,500 objects, one in a hundred cannot be written", objects: 2500, denied: true, rounds: 1,
		contenders: []string{inTree, ours, ksvm}, measures: damage,
	},
	{
		name: "killed", title: "2,500 objects, kill -9 in the middle", objects: 2500, killed: true, rounds: 1,
		contenders: []string{inTree, ours, ksvm}, measures: restart,
	},
	{
		name: "large", title: "50,000 objects, nobody else there", objects: 50000, rounds: 1, measures: ofMany,
		contenders: []string{inTree, ours, oursLifted, ksvmLifted, naked64},
	},
	{
		name: "unattended", title: "100 objects and 100 definitions, nobody asks for a migration", objects: 100,
		unattended: true, rounds: 1, contenders: []string{inTree, ours, ksvm}, measures: ready,
		server: []string{"--event-ttl=" + eventTTL}, // The manager waits until old events are gone, by default an hour.
	},
	{
		name: "lasting", title: "60,000 objects, another client at 150 operations a second", objects: 60000, others: 150,
		rounds: 1, contenders: []string{inTree, ours}, measures: lasting,
		server: []string{"--etcd-compaction-interval=1m"}, // The manager would pause for space in etcd, and others feel less.
	},
}

// defaultScenarios are all but the last.
func defaultScenarios() (names []string) {
	for _, s := range scenarios[:len(scenarios)-1] {
		names = append(names, s.name)
	}
	return names
}
