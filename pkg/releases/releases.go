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

// Package releases knows which kinds the releases of Kubernetes can read from etcd, and serve. The data are generated
// from the sources of Kubernetes: known.txt is the output of hack/releases.
//
// A release reads what its sources know, even if it does not serve it any more. A release that is older or newer than
// the data gets an answer only where the data leave no doubt.
package releases

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:embed known.txt
var known string

// fieldsOfLine are version, kind, introduced, removed and releases.
const fieldsOfLine = 5

// Minor is a minor release of Kubernetes 1.
type Minor int

// ParseMinor reads a release, for example 1.37 or v1.37.2.
func ParseMinor(release string) (Minor, error) {
	parts := strings.Split(strings.TrimPrefix(release, "v"), ".")
	if len(parts) >= 2 && parts[0] == "1" {
		// The version of an API server may say 38+.
		if minor, err := strconv.Atoi(strings.TrimSuffix(parts[1], "+")); err == nil && minor >= 0 {
			return Minor(minor), nil
		}
	}
	return 0, fmt.Errorf("%q is not a release of Kubernetes: write it as 1.37 or v1.37.2", release)
}

func (m Minor) String() string { return fmt.Sprintf("1.%d", int(m)) }

// Answer is yes, no, or not known.
type Answer string

const (
	Yes      Answer = "yes"
	No       Answer = "no"
	NotKnown Answer = "not known"
)

// Support is what a release does with objects that are stored as one kind at one version.
type Support struct {
	Reads, Serves Answer
	// Removed is the first release that does not serve the version any more, or zero.
	Removed Minor
}

// kind is a kind at one version.
type kind struct {
	introduced, removed Minor
	readBy              []Minor
}

type data struct {
	kinds          map[schema.GroupVersionKind]kind
	groups         map[string]bool
	oldest, newest Minor
}

var parsed = sync.OnceValue(func() data {
	d := data{kinds: map[schema.GroupVersionKind]kind{}, groups: map[string]bool{}}
	for line := range strings.Lines(known) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) != fieldsOfLine {
			continue
		}
		gvk := schema.FromAPIVersionAndKind(fields[0], fields[1])
		k := kind{introduced: minorOf(fields[2]), removed: minorOf(fields[3])}
		for _, release := range strings.Split(fields[4], ",") {
			k.readBy = append(k.readBy, minorOf(release))
		}
		if d.oldest == 0 || k.readBy[0] < d.oldest {
			d.oldest = k.readBy[0]
		}
		d.newest = max(d.newest, k.readBy[len(k.readBy)-1])
		d.kinds[gvk], d.groups[gvk.Group] = k, true
	}
	return d
})

// minorOf returns zero for what is no release.
func minorOf(release string) Minor {
	minor, err := ParseMinor(release)
	if err != nil {
		return 0
	}
	return minor
}

// Known returns the oldest and the newest release that there are data of.
func Known() (oldest, newest Minor) { return parsed().oldest, parsed().newest }

// BuiltIn reports whether a group is one of kube-apiserver itself.
func BuiltIn(group string) bool { return parsed().groups[group] }

// Kinds returns the kinds that a version has, or had.
func Kinds(version schema.GroupVersion) []string {
	var kinds []string
	for gvk := range parsed().kinds {
		if gvk.GroupVersion() == version {
			kinds = append(kinds, gvk.Kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// Versions returns the versions that a kind has, or had.
func Versions(kind schema.GroupKind) []string {
	var versions []string
	for gvk := range parsed().kinds {
		if gvk.GroupKind() == kind {
			versions = append(versions, gvk.Version)
		}
	}
	slices.Sort(versions)
	return versions
}

// Precedes reports whether a release is older than all releases that have the kind, at any version. It is false if
// there are no data of the release.
func Precedes(release Minor, kind schema.GroupKind) bool {
	d := parsed()
	for gvk, k := range d.kinds {
		if gvk.GroupKind() == kind && k.readBy[0] <= release {
			return false
		}
	}
	return d.oldest <= release && release <= d.newest
}

// ByDefault reports whether the known releases serve a version without the flag --runtime-config. Kubernetes does not
// serve new beta versions by default since 1.24, and never served alpha versions so.
func ByDefault(version string) bool {
	return !strings.Contains(version, "alpha") && !strings.Contains(version, "beta")
}

// SupportOf returns what a release does with a kind at a version.
func SupportOf(gvk schema.GroupVersionKind, release Minor) Support {
	d := parsed()
	k, exists := d.kinds[gvk]
	support := Support{Reads: NotKnown, Serves: NotKnown, Removed: k.removed}
	switch {
	case release < d.oldest && k.introduced > release:
		support.Reads = No
	case release < d.oldest:
	case release <= d.newest && slices.Contains(k.readBy, release):
		support.Reads = Yes
	case release <= d.newest:
		support.Reads = No
	case exists && !slices.Contains(k.readBy, d.newest):
		support.Reads = No // Versions that left the sources do not come back.
	}
	switch {
	case support.Reads == No, k.removed != 0 && k.removed <= release:
		support.Serves = No
	case support.Reads == Yes:
		support.Serves = Yes
	}
	return support
}
