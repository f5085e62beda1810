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

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// bench measures all scenarios.
type bench struct {
	options
	results *results
}

func (b *bench) all(ctx context.Context) error {
	order := rand.New(rand.NewPCG(b.seed, 0))
	for _, name := range strings.Split(b.scenarios, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("there is no scenario %q", name)
		}
		s := scenarios[i]
		s.contenders = slices.DeleteFunc(slices.Clone(s.contenders), func(name string) bool { return !b.takesPart(s, name) })
		for _, name := range strings.Split(b.contenders, ";") {
			if strings.HasPrefix(name, evenly) {
				s.contenders = append(s.contenders, name)
			}
		}
		measure := b.inRounds
		if s.unattended {
			measure = b.sideBySide
		}
		if err := measure(ctx, s, order); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// checkContenders returns an error if -contenders names somebody whom no scenario has.
func (o options) checkContenders() error {
	known := sets.New[string]()
	for _, s := range scenarios {
		known.Insert(s.contenders...)
	}
	for _, name := range strings.Split(o.contenders, ";") {
		if o.contenders != "" && !strings.HasPrefix(name, evenly) && !known.Has(name) {
			return fmt.Errorf("-contenders has %q: choose from %s and %s90", name,
				strings.Join(sets.List(known), "; "), evenly)
		}
	}
	return nil
}

// takesPart tells whether a contender is measured. What polls every ten minutes is not unattended in a quick run.
func (b *bench) takesPart(s scenario, name string) bool {
	if strings.HasPrefix(name, ksvm) && (b.ksvm == "" || b.quick && s.unattended) {
		return false
	}
	return b.contenders == "" || slices.Contains(strings.Split(b.contenders, ";"), name)
}

// stage starts a control plane with the objects of a scenario.
func (b *bench) stage(ctx context.Context, s scenario) (*widgets, error) {
	server := controlplane.Server{ExtraArgs: s.server}
	cp, err := controlplane.New(ctx, controlplane.Config{Servers: []controlplane.Server{server}})
	if err != nil {
		return nil, err
	}
	if err := controlplane.InstallMigrationAPI(ctx, cp.AdminConfig()); err != nil {
		return nil, errors.Join(err, cp.Close())
	}
	w, err := newWidgets(ctx, cp, max(1, int(float64(s.objects)*b.scale)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating objects: %w", err), cp.Close())
	}
	return w, nil
}

// inRounds measures all contenders in turn, round by round.
func (b *bench) inRounds(ctx context.Context, s scenario, order *rand.Rand) (err error) {
	w, err := b.stage(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.cp.Close()) }()
	for round := range cmp.Or(b.rounds, s.rounds) {
		order.Shuffle(len(s.contenders), func(i, j int) {
			s.contenders[i], s.contenders[j] = s.contenders[j], s.contenders[i]
		})
		for _, name := range s.contenders {
			f, err := b.run(ctx, w, s, name)
			if err != nil {
				return fmt.Errorf("%s in round %d: %w", name, round+1, err)
			}
			b.results.add(s, name, round+1, f)
			fmt.Fprintf(os.Stderr, "%s, round %d, %s: %s\n", s.name, round+1, name, f.brief(s))
		}
	}
	return nil
}

// sideBySide gives each contender a control plane and measures all at the same time: what is measured takes long by
// the clock, and little of the machine.
func (b *bench) sideBySide(ctx context.Context, s scenario, _ *rand.Rand) error {
	var all errgroup.Group
	for _, name := range s.contenders {
		w, err := b.stage(ctx, s)
		if err != nil {
			return errors.Join(err, all.Wait())
		}
		all.Go(func() error {
			f, err := b.unattended(ctx, w, name)
			if err == nil {
				b.results.add(s, name, 1, f)
				fmt.Fprintf(os.Stderr, "%s, %s: %s\n", s.name, name, f.brief(s))
			}
			return errors.Join(err, w.cp.Close())
		})
	}
	return all.Wait()
}
