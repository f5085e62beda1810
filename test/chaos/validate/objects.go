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

package validate

import (
	"net/http"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

const p3 = "P3 (no change)"

// unchanged wants that each write in etcd is either one that a writer requested, once, or changes nothing but the
// encoding.
func (j *judge) unchanged(o, before model.Object, existed bool) {
	if !j.live {
		return
	}
	if o.Deleted {
		j.deletions[object{o.Resource, o.Name}]++
		return
	}
	j.result.Objects++
	if o.Broken != "" {
		j.violated(p3, o.Resource, "%s is broken: %s", o.Name, o.Broken)
		return
	}
	if existed && before.Write == o.Write {
		j.rewritten(o, before)
		return
	}
	request, known := j.writes[o.Write]
	switch {
	case !known || request.Resource != o.Resource || request.Name != o.Name:
		j.violated(p3, o.Resource, "%s says that it comes from write %d, which nobody requested", o.Name, o.Write)
	case request.Outcome == model.Refused:
		j.violated(p3, o.Resource, "%s comes from write %d, which %s refused with %d",
			o.Name, o.Write, request.Server, request.Code)
	case request.Outcome == model.Done && request.Revision != j.now.Number && request.Era == j.era:
		j.violated(p3, o.Resource, "%s comes from write %d again, which was done at revision %d: its last write was %d",
			o.Name, o.Write, request.Revision, before.Write)
	case o.Created != (request.Verb == http.MethodPost):
		j.violated(p3, o.Resource, "%s comes from write %d, a %s, and created=%t",
			o.Name, o.Write, request.Verb, o.Created)
	}
	delete(j.writes, o.Write) // A second time nobody requested it.
}

// rewritten judges a write of an object that still says that it comes from the same request.
func (j *judge) rewritten(o, before model.Object) {
	j.result.Rewrites++
	if o.Content != before.Content {
		j.violated(p3, o.Resource, "a write changed more of %s than its encoding (%s to %s)",
			o.Name, before.Encoding, o.Encoding)
	} else if o.Encoding == before.Encoding {
		j.violated(p4, o.Resource, "%s was rewritten in %s, in which it was stored already", o.Name, o.Encoding)
	}
}

// acknowledged wants that every write that a server confirmed is in etcd, at the revision in the answer.
func (j *judge) acknowledged() {
	acknowledged, possible := map[object]int{}, map[object]int{}
	for _, r := range j.record.Requests {
		if r.Era != j.era {
			continue
		}
		key := object{r.Resource, r.Name}
		_, unseen := j.writes[r.Write]
		switch {
		case r.Verb == http.MethodDelete && r.Outcome == model.Done:
			acknowledged[key]++
			possible[key]++
		case r.Verb == http.MethodDelete && r.Outcome == model.Unknown:
			possible[key]++
		case r.Verb != http.MethodDelete && r.Outcome == model.Done && unseen:
			j.violated(p3, r.Resource, "write %d of %s was confirmed by %s at revision %d, and is not in etcd",
				r.Write, r.Name, r.Server, r.Revision)
		}
	}
	for key, count := range j.deletions {
		if count > possible[key] {
			j.violated(p3, key.resource, "%s was deleted %d times, and writers requested that %d times",
				key.name, count, possible[key])
		}
	}
	for key, count := range acknowledged {
		if j.deletions[key] < count {
			j.violated(p3, key.resource, "%s was deleted %d times, and servers confirmed that %d times",
				key.name, j.deletions[key], count)
		}
	}
}
