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

package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

func noController(context.Context, ControllerContext) (Controller, error) { return nil, nil }

func TestFlagsOfControllers(t *testing.T) {
	trigger, migrator := newStorageVersionMigrationTriggerDescriptor, newStorageVersionMigratorDescriptor
	for arg, test := range map[string]struct {
		of   func() ControllerDescriptor
		want string
	}{
		// This is the flag with a variable that is not set. An administrator may mean all, or nothing.
		"--auto-migrate=":      {trigger, "--auto-migrate: the list is empty"},
		"--soak-period=87600h": {trigger, "--soak-period must be from 0s to 8760h0m0s, got 87600h0m0s"},
		"--migration-turn=1ns": {migrator, "--migration-turn must be at least 1s, or zero for no limit, got 1ns"},
	} {
		flags, fs := test.of().Options, pflag.NewFlagSet("test", pflag.ContinueOnError)
		flags.AddFlags(fs)
		if err := fs.Parse([]string{arg}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(flags.Validate()...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v", arg, err)
		}
	}
}

// TestArguments has the value of a flag behind a blank, which makes it an argument.
func TestArguments(t *testing.T) {
	cmd := NewControllerManagerCommand()
	if err := cmd.Args(cmd, []string{"false"}); err == nil || !strings.Contains(err.Error(), "--leader-elect=false") {
		t.Errorf("got the error %v", err)
	}
}

// TestControllerNames enforces the change policy of package names: a change breaks the command lines of users.
func TestControllerNames(t *testing.T) {
	want := map[string][]string{
		names.StorageVersionGarbageCollectorController: {"storageversiongc"},
		names.StorageVersionMigrationTriggerController: {"svmtrigger"},
		names.StorageVersionMigratorController:         {"svmigrator"},
	}
	got, gates := map[string][]string{}, map[string][]featuregate.Feature{}
	for _, d := range NewControllerDescriptors() {
		got[d.Name] = d.Aliases
		for _, name := range append([]string{d.Name}, d.Aliases...) {
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
				t.Errorf("%q is not a DNS label: %v", name, problems)
			}
		}
		if !strings.HasSuffix(d.Name, "-controller") {
			t.Errorf("%q does not end in -controller", d.Name)
		}
		gates[d.Name] = d.FeatureGates
	}
	wantGates := map[string][]featuregate.Feature{
		names.StorageVersionGarbageCollectorController: {features.StorageVersionGarbageCollector},
		names.StorageVersionMigrationTriggerController: {features.StorageVersionMigrationTrigger},
		names.StorageVersionMigratorController:         {features.StorageVersionMigrator},
	}
	if diff := cmp.Diff(wantGates, gates); diff != "" {
		t.Errorf("gates of controllers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("controllers and aliases differ from what users know (-want +got):\n%s", diff)
	}
	if got := names.StorageVersionGarbageCollectorController; got != "storageversion-garbage-collector-controller" {
		t.Errorf("whoever switches it off in kube-controller-manager knows another name than %q", got)
	}
}

func TestRegistryRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		descriptors []ControllerDescriptor
		want        string
	}{
		"a descriptor without a name": {
			descriptors: []ControllerDescriptor{{New: noController}},
			want:        "needs a name",
		},
		"a descriptor without a constructor": {
			descriptors: []ControllerDescriptor{{Name: "a-controller"}},
			want:        "a constructor",
		},
		"a name that is taken": {
			descriptors: []ControllerDescriptor{
				{Name: "a-controller", New: noController},
				{Name: "a-controller", New: noController},
			},
			want: `controller "a-controller": controller "a-controller" has the name "a-controller" already`,
		},
		"an alias that is taken": {
			descriptors: []ControllerDescriptor{
				{Name: "b-controller", Aliases: []string{"x"}, New: noController},
				{Name: "a-controller", Aliases: []string{"x"}, New: noController},
			},
			want: `controller "b-controller": controller "a-controller" has the name "x" already`,
		},
		"an alias that is the name of another controller": {
			descriptors: []ControllerDescriptor{
				{Name: "a-controller", Aliases: []string{"b-controller"}, New: noController},
				{Name: "b-controller", New: noController},
			},
			want: `controller "b-controller": controller "a-controller" has the name "b-controller" already`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newRegistry(tc.descriptors...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("newRegistry: got %v, want an error that says %q", err, tc.want)
			}
		})
	}
}

func TestSelectControllers(t *testing.T) {
	const off = features.StorageVersionMigrator
	gates := featuregate.NewFeatureGate()
	err := gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{off: {PreRelease: featuregate.Alpha}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := newRegistry(
		ControllerDescriptor{Name: "a-controller", Aliases: []string{"a"}, New: noController},
		ControllerDescriptor{Name: "b-controller", New: noController},
		ControllerDescriptor{Name: "gated-controller", FeatureGates: []featuregate.Feature{off}, New: noController},
		ControllerDescriptor{Name: "shy-controller", DisabledByDefault: true, New: noController},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		controllers []string
		want        []string
	}{
		"a star selects what is on by default": {
			controllers: []string{"*"},
			want:        []string{"a-controller", "b-controller"},
		},
		"a minus leaves one out": {
			controllers: []string{"*", "-b-controller"},
			want:        []string{"a-controller"},
		},
		"a name alone selects it alone": {
			controllers: []string{"b-controller"},
			want:        []string{"b-controller"},
		},
		"a name selects one that is off by default": {
			controllers: []string{"shy-controller"},
			want:        []string{"shy-controller"},
		},
		"a gate that is off wins over the selection": {controllers: []string{"gated-controller"}},
		"nothing is left": {controllers: []string{"-a-controller"}},
	} {
		t.Run(name, func(t *testing.T) {
			selected, err := selectControllers(t.Context(), all, tc.controllers, gates)
			var got []string
			for _, d := range selected {
				got = append(got, d.Name)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("selected %q, want %q", got, tc.want)
			}
			if (err != nil) != (len(tc.want) == 0) {
				t.Errorf("want an error only if nothing is left to run, got %v", err)
			}
		})
	}
}
