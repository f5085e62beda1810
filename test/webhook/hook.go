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

package webhook

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Behaviour is how a hook handles requests. The zero value answers them at once.
type Behaviour struct {
	// Refuse has the messages with which the hook refuses objects, by the names of the objects. One refused object makes a
	// whole conversion request fail.
	Refuse map[string]string
	// Deny has the statuses with which the hook denies admission, by the names of the objects. The hook sends them
	// unchanged, even if they make no sense. Hooks for conversion ignore it.
	Deny map[string]metav1.Status
	// Fail answers with the status 500.
	Fail bool
	// Delay passes before the answer.
	Delay time.Duration
	// Hang delays requests until the behaviour changes, and then applies the new one. It ends when the client gives up or
	// the server closes.
	Hang bool
}

// timeoutSeconds is how long API servers wait for the answer of a hook for admission. They allow no more. By default it
// is 10 seconds, for which the process of the test may stand still on a busy machine.
const timeoutSeconds = int32(30)

// answerer answers the review in the body of a request with a value to send as JSON.
type answerer func(body []byte, b Behaviour) (any, error)

// Hook is one webhook of a Server. Its methods may be called from any goroutine.
type Hook struct {
	url      string
	caBundle []byte
	answer   answerer

	mu        sync.Mutex
	behaviour Behaviour
	changed   chan struct{} // closed by the next Behave
	requests  int
	waiting   int
}

// URL is where API servers call the hook.
func (h *Hook) URL() string { return h.url }

// Behave changes how the hook behaves.
func (h *Hook) Behave(b Behaviour) {
	b.Refuse, b.Deny = maps.Clone(b.Refuse), maps.Clone(b.Deny)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behaviour = b
	close(h.changed)
	h.changed = make(chan struct{})
}

// Requests is the number of requests so far.
func (h *Hook) Requests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests
}

// Waiting is the number of requests that Hang or Delay hold at the moment.
func (h *Hook) Waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

func (h *Hook) serve(w http.ResponseWriter, r *http.Request) {
	// Read all of it. Otherwise the HTTP server does not notice when the client goes away.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.requests++
	h.waiting++
	h.mu.Unlock()
	b, err := h.await(r.Context())
	h.mu.Lock()
	h.waiting--
	h.mu.Unlock()
	if err != nil {
		return
	}
	if b.Fail {
		http.Error(w, "this webhook was told to fail", http.StatusInternalServerError)
		return
	}
	review, err := h.answer(body, b)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // The client may be gone.
}

// await delays a request as long as the behaviour says, and returns the behaviour to apply then. It returns an error if
// nobody waits for the answer any more.
func (h *Hook) await(ctx context.Context) (Behaviour, error) {
	for {
		h.mu.Lock()
		b, changed := h.behaviour, h.changed
		h.mu.Unlock()
		if !b.Hang {
			return b, pause(ctx, b.Delay)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Behaviour{}, ctx.Err()
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
