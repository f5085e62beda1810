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

package controlplane

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditBuffer holds most lines of an audit log.
const auditBuffer = 64 << 10

// RequestFilter selects requests from the audit logs. The zero value selects all; what is empty does not select.
type RequestFilter struct {
	// Since and Until bound when the servers received the requests. The clock is this machine's.
	Since, Until time.Time
	Users        []string
	Verbs        []string
	// Resources are the resources, whatever the subresource.
	Resources []schema.GroupResource
	// Match is asked last, about what the other fields selected.
	Match func(*auditv1.Event) bool
}

// RequestKind is what requests are counted by.
type RequestKind struct {
	// Server is the name of the API server that answered.
	Server string
	User   string
	Verb   string
	// Resource and Subresource are empty for requests of other paths.
	Resource    schema.GroupResource
	Subresource string
	// Code is the HTTP status; zero for a watch that has not ended and a request whose connection broke.
	Code int
}

// RequestCounts counts requests.
type RequestCounts map[RequestKind]int

// Total is the number of all requests.
func (c RequestCounts) Total() int { return c.Count(func(RequestKind) bool { return true }) }

// Count is the number of those that match.
func (c RequestCounts) Count(match func(RequestKind) bool) int {
	total := 0
	for kind, n := range c {
		if match(kind) {
			total += n
		}
	}
	return total
}

// By sums up over everything but what key keeps: By(func(k RequestKind) RequestKind { return RequestKind{User: k.User}
// }).
func (c RequestCounts) By(key func(RequestKind) RequestKind) RequestCounts {
	sums := RequestCounts{}
	for kind, n := range c {
		sums[key(kind)] += n
	}
	return sums
}

// Requests counts the requests that all servers received, also before they were restarted, by the audit logs. A request
// that the audit policy leaves out is not counted. The default policy leaves out some users: a filter that selects them
// is refused, and has to name others. Servers log a request when they have answered it, hence a moment after the client
// has its answer: a test that expects requests polls.
func (cp *ControlPlane) Requests(filter RequestFilter) (RequestCounts, error) {
	counts, maySelect := RequestCounts{}, filter.maySelect()
	for _, s := range cp.Servers() {
		if err := filter.check(s.auditPolicy()); err != nil {
			return nil, fmt.Errorf("reading the audit log of %s: %w", s.name, err)
		}
		// A long request is logged when it starts and when it ends: the later line wins.
		kinds := map[string]RequestKind{}
		err := readAudit(cp.auditPath(s.name), maySelect, func(event *auditv1.Event) {
			if filter.selects(event) {
				kinds[string(event.AuditID)] = kindOf(s.name, event)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("reading the audit log of %s: %w", s.name, err)
		}
		for _, kind := range kinds {
			counts[kind]++
		}
	}
	return counts, nil
}

// check refuses a filter of requests that the policy, the default one if it is empty, leaves out.
func (f RequestFilter) check(policy string) error {
	switch {
	case policy != "":
		return nil
	case len(f.Users) == 0:
		return errors.New("the default audit policy leaves out users, so the filter has to name those to count")
	case slices.Contains(f.Users, adminUser), slices.Contains(f.Users, loopbackUser):
		return fmt.Errorf("the default audit policy leaves out %s and %s, the filter selects %q",
			adminUser, loopbackUser, f.Users)
	default:
		return nil
	}
}

// maySelect returns a function that reports whether a line of the log may have an event that the filter selects. Most
// lines have none, and to search a line is much cheaper than to decode it.
func (f RequestFilter) maySelect() func(line []byte) bool {
	fields := func(key string, values []string) (texts [][]byte) {
		for _, value := range values {
			texts = append(texts, fmt.Appendf(nil, "%q:%q", key, value))
		}
		return texts
	}
	users, verbs := fields("username", f.Users), fields("verb", f.Verbs)
	return func(line []byte) bool {
		contains := func(text []byte) bool { return bytes.Contains(line, text) }
		return (len(users) == 0 || slices.ContainsFunc(users, contains)) &&
			(len(verbs) == 0 || slices.ContainsFunc(verbs, contains))
	}
}

func (f RequestFilter) selects(event *auditv1.Event) bool {
	received := event.RequestReceivedTimestamp.Time
	switch {
	case !f.Since.IsZero() && received.Before(f.Since),
		!f.Until.IsZero() && received.After(f.Until),
		len(f.Users) > 0 && !slices.Contains(f.Users, event.User.Username),
		len(f.Verbs) > 0 && !slices.Contains(f.Verbs, event.Verb),
		len(f.Resources) > 0 && !slices.Contains(f.Resources, resourceOf(event)),
		f.Match != nil && !f.Match(event):
		return false
	}
	return true
}

func (s *APIServer) auditPolicy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spec.AuditPolicy
}

func resourceOf(event *auditv1.Event) schema.GroupResource {
	if event.ObjectRef == nil {
		return schema.GroupResource{}
	}
	return schema.GroupResource{Group: event.ObjectRef.APIGroup, Resource: event.ObjectRef.Resource}
}

func kindOf(server string, event *auditv1.Event) RequestKind {
	kind := RequestKind{Server: server, User: event.User.Username, Verb: event.Verb, Resource: resourceOf(event)}
	if event.ObjectRef != nil {
		kind.Subresource = event.ObjectRef.Subresource
	}
	// A watch is answered with 200 when it starts; what counts is how it ends.
	if event.ResponseStatus != nil && event.Stage != auditv1.StageResponseStarted {
		kind.Code = int(event.ResponseStatus.Code)
	}
	return kind
}

// completeLines ends the last line of a log, which a server that was killed may have left in the middle: the next one
// appends.
func completeLines(path string) error {
	file, err := os.OpenFile(filepath.Clean(path), os.O_RDWR|os.O_APPEND, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, info.Size()-1); err != nil {
		return fmt.Errorf("reading the end: %w", err)
	}
	if last[0] == '\n' {
		return nil
	}
	if _, err := file.Write([]byte("\n")); err != nil {
		return fmt.Errorf("ending the last line: %w", err)
	}
	return nil
}

// readAudit calls visit for every event of a log that may still be written, if mayMatter is true of its line: an
// unfinished last line is left for next time. A line that ends in the middle of an event is what a killed server left:
// of its request nothing is known.
func readAudit(path string, mayMatter func(line []byte) bool, visit func(*auditv1.Event)) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	defer file.Close()
	reader := bufio.NewReaderSize(file, auditBuffer)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		if !mayMatter(line) {
			continue
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			if bytes.HasSuffix(bytes.TrimSpace(line), []byte("}")) {
				return fmt.Errorf("parsing %q: %w", line, err)
			}
			continue
		}
		visit(&event)
	}
}
