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

package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

const (
	writers = 4
	// fillers write the first objects.
	fillers = 8
	// filledWithin is how long a filler tries to write an object.
	filledWithin = 5 * time.Minute
	// pause is how long a writer waits after a request at most.
	pause = 300 * time.Millisecond
	// Of a hundred writes, so many create and delete an object. All others change one.
	creates, deletes = 16, 4
)

// Traffic is writers that write as long as they are let.
type Traffic struct {
	seed    uint64
	clients []*client
	history *model.History
	last    atomic.Int64 // the number of the last write
	// gate is held for reading by each request, and for writing by whoever wants no request to be on its way.
	gate sync.RWMutex
}

// New makes writers that send requests to servers, by name, through configurations.
func New(seed uint64, history *model.History, names []string, configs []*rest.Config) (*Traffic, error) {
	t := &Traffic{seed: seed, history: history}
	for i, config := range configs {
		c, err := newClient(names[i], config)
		if err != nil {
			return nil, err
		}
		t.clients = append(t.clients, c)
	}
	return t, nil
}

// Fill creates an object for each name.
func (t *Traffic) Fill(ctx context.Context) error {
	type place struct {
		resource model.Resource
		name     string
	}
	places := make(chan place)
	problems := make(chan error, fillers)
	var filling sync.WaitGroup
	for range fillers {
		filling.Go(func() {
			for p := range places {
				if err := t.fill(ctx, p.resource, p.name); err != nil {
					problems <- err
					return
				}
			}
		})
	}
	defer filling.Wait()
	defer close(places)
	for _, resource := range model.Resources {
		for i := range resource.Names {
			select {
			case places <- place{resource, resource.Name(i)}:
			case err := <-problems:
				return err
			}
		}
	}
	return nil
}

// fill creates one object. A server may not have heard of the namespace or the definition yet.
func (t *Traffic) fill(ctx context.Context, resource model.Resource, name string) error {
	for began := time.Now(); ; {
		r := t.write(ctx, t.clients[0], resource, model.Request{
			Verb: http.MethodPost, Name: name, Version: resource.Versions[0],
		})
		if r.Outcome == model.Done || r.Code == http.StatusConflict {
			return nil
		}
		if time.Since(began) > filledWithin {
			return fmt.Errorf("creating %s %s: %d, the outcome is %s", resource, name, r.Code, r.Outcome)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Run writes until ctx ends. What a writer does follows from the seed.
func (t *Traffic) Run(ctx context.Context, round int) {
	var running sync.WaitGroup
	for i := range writers {
		random := rand.New(rand.NewPCG(t.seed, uint64(round)<<8|uint64(i+1)))
		running.Go(func() {
			for ctx.Err() == nil {
				resource, c, r := t.choose(random)
				wait := time.Duration(random.Int64N(int64(pause)))
				t.write(context.WithoutCancel(ctx), c, resource, r)
				_ = sleep(ctx, wait) // the loop notices the end
			}
		})
	}
	running.Wait()
}

// choose draws the same number of random numbers each time, whatever the cluster does.
func (t *Traffic) choose(random *rand.Rand) (model.Resource, *client, model.Request) {
	resource := model.Resources[random.IntN(len(model.Resources))]
	c := t.clients[random.IntN(len(t.clients))]
	version := resource.Versions[random.IntN(len(resource.Versions))]
	name := resource.Name(random.IntN(resource.Names))
	verb := http.MethodPatch
	switch dice := random.IntN(100); {
	case dice < creates:
		verb = http.MethodPost
	case dice < creates+deletes:
		verb = http.MethodDelete
	}
	return resource, c, model.Request{Verb: verb, Name: name, Version: version}
}

func (t *Traffic) write(ctx context.Context, c *client, resource model.Resource, r model.Request) model.Request {
	t.gate.RLock()
	defer t.gate.RUnlock()
	r.Write, r.Resource, r.Era = t.last.Add(1), resource.Resource, t.history.Era()
	r = c.send(ctx, resource, r)
	t.history.AddRequest(r)
	return r
}

// Quiet keeps the writers from writing until release is called, and returns when no request is on its way.
func (t *Traffic) Quiet() (release func()) {
	t.gate.Lock()
	return t.gate.Unlock
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("the run ended"), ctx.Err())
	}
}
