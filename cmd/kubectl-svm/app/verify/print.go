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

package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/stored"
)

// Result is what -o json and -o yaml print.
type Result struct {
	// Server has the endpoints of etcd that were asked.
	Server string `json:"server,omitempty"`
	// FirstRevision and LastRevision are those of etcd. They differ if etcd was compacted meanwhile.
	FirstRevision int64              `json:"firstRevision"`
	LastRevision  int64              `json:"lastRevision"`
	Objects       int64              `json:"objects"`
	Stored        []Stored           `json:"stored"`
	Unclaimed     []stored.Unclaimed `json:"unclaimed"`
	// Keys are those of --without-key.
	Keys []Key `json:"keys,omitempty"`
	// NotCompared means that the StorageStates could not be read, so that Unclaimed says nothing.
	NotCompared bool `json:"notCompared,omitempty"`
}

// Stored is how many objects of a resource are stored in one way.
type Stored struct {
	Resource      string `json:"resource"`
	Version       string `json:"version,omitempty"`
	Kind          string `json:"kind,omitempty"`
	Format        string `json:"format"`
	EncryptedWith string `json:"encryptedWith,omitempty"`
	Objects       int64  `json:"objects"`
	// NoStorageState means that the manager does not migrate the objects: there are StorageStates, and none of them.
	NoStorageState bool `json:"noStorageState,omitempty"`
}

// Key is how many objects are encrypted with a key, or with none if it is "-".
type Key struct {
	Key     string `json:"key"`
	Objects int64  `json:"objects"`
}

// ResultOf returns what was found, without contents of objects. The error is that of Survey, if there is one.
func ResultOf(survey *stored.Survey, err error) Result {
	result := Result{
		FirstRevision: survey.First, LastRevision: survey.Last, Stored: []Stored{}, Unclaimed: survey.Unclaimed(),
		NotCompared: err != nil,
	}
	for _, tally := range survey.Tallies {
		sameName := func(s migrationv1alpha1.StorageState) bool { return s.Spec.Resource.Resource == tally.Resource }
		result.Objects += tally.Objects
		result.Stored = append(result.Stored, Stored{
			Resource: tally.Name(), Version: tally.APIVersion, Kind: tally.Kind, Format: string(tally.Format),
			EncryptedWith: encryption(tally.Form), Objects: tally.Objects,
			NoStorageState: err == nil && len(survey.States) > 0 && !slices.ContainsFunc(survey.States, sameName),
		})
	}
	return result
}

// countUnreadable counts the objects whose form no API server writes.
func (r *Result) countUnreadable() (objects int64) {
	for _, s := range r.Stored {
		if s.Format == string(stored.Unreadable) {
			objects += s.Objects
		}
	}
	return objects
}

// countEncryptedWith counts the objects that are encrypted with a key, as the column ENCRYPTED WITH shows it. A KMS v2
// key without a key ID matches all its IDs. What is never encrypted does not count as not encrypted. It also returns a
// sentence about those that the manager does not migrate, or nothing.
func (r *Result) countEncryptedWith(key string) (objects int64, unmigrated string) {
	var names []string
	for _, s := range r.Stored {
		if orDash(s.EncryptedWith) != key && !strings.HasPrefix(s.EncryptedWith, key+keyID) ||
			key == notEncrypted && stored.NeverEncrypted(s.Resource) {
			continue
		}
		if objects += s.Objects; s.NoStorageState && !slices.Contains(names, s.Resource) {
			names = append(names, s.Resource)
		}
	}
	if len(names) > 0 {
		unmigrated = " The manager does not migrate these resources, because they have no StorageState: " +
			strings.Join(names, ", ") + "."
	}
	return objects, unmigrated
}

// exceptions names what was found and is never encrypted, as the end of a sentence.
func (r *Result) exceptions() string {
	var names []string
	for _, s := range r.Stored {
		if stored.NeverEncrypted(s.Resource) && s.EncryptedWith == "" && !slices.Contains(names, s.Resource) {
			names = append(names, s.Resource)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", but for what API servers never encrypt: " + strings.Join(names, ", ")
}

func (o *Options) print(survey *stored.Survey, err error) error {
	result, forbidden := ResultOf(survey, err), false
	result.Server = strings.Join(o.names(), ",")
	for _, key := range o.WithoutKeys {
		objects, _ := result.countEncryptedWith(key)
		result.Keys = append(result.Keys, Key{key, objects})
		forbidden = forbidden || objects > 0
	}
	if o.Output.Structured() {
		o.Output.PrintData(o.Env, result)
	} else {
		o.printText(survey, result)
	}
	if len(result.Unclaimed) > 0 || result.countUnreadable() > 0 || forbidden {
		return cli.NotSafe()
	}
	return nil
}

func (o *Options) printText(survey *stored.Survey, result Result) {
	columns := []cli.Column{
		{Name: "Resource"}, {Name: "Version"}, {Name: "Encrypted with"}, {Name: "Objects"},
		{Name: "Kind", Wide: true}, {Name: "Format", Wide: true},
	}
	var rows []cli.Row
	for _, s := range result.Stored {
		row := cli.Row{Cells: []any{
			s.Resource, orDash(s.Version), orDash(s.EncryptedWith), strconv.FormatInt(s.Objects, 10), orDash(s.Kind), s.Format,
		}}
		if s.Format == string(stored.Unreadable) {
			row.Colour = cli.Red
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		o.Output.PrintTable(o.Env, columns, rows)
	}
	fmt.Fprintf(o.Out, "\n%s at revision %d of etcd.\n", assess.FormatObjects(result.Objects), result.FirstRevision)
	if result.LastRevision != result.FirstRevision {
		fmt.Fprintf(o.Out, "etcd was compacted meanwhile, so the last objects were read at revision %d. Every object "+
			"that existed during the whole run was counted.\n", result.LastRevision)
	}
	if n := result.countUnreadable(); n > 0 {
		fmt.Fprintln(o.Out, o.Paint(cli.Red, fmt.Sprintf("%s cannot be read: the bytes are neither protobuf, "+
			"JSON nor CBOR of an object, nor encrypted. API servers cannot read them either.", assess.FormatObjects(n))))
	}
	o.printKeys(result)
	switch {
	case result.NotCompared:
		fmt.Fprintln(o.Out, "Nothing was compared with StorageStates.")
	case len(survey.States) == 0:
		fmt.Fprintln(o.Out, "There are no StorageStates to compare with.")
	case len(result.Unclaimed) == 0:
		fmt.Fprintln(o.Out, "No StorageState omits a version that was found.")
	}
	for _, u := range result.Unclaimed {
		fmt.Fprintln(o.Out, o.Paint(cli.Red, fmt.Sprintf("StorageState %s claims only %s, but etcd has %s "+
			"as %s.", u.StorageState, strings.Join(u.Claims, ", "), assess.FormatObjects(u.Objects), u.Version)))
	}
	if len(result.Unclaimed) > 0 {
		fmt.Fprintln(o.Out, "The manager records a new version some seconds after it changes. If the same is printed a "+
			"minute later,\ndo not rely on these StorageStates. Delete them: the manager then starts over.")
	}
}

// printKeys prints for each key of --without-key whether objects are encrypted with it.
func (o *Options) printKeys(result Result) {
	object := "object"
	if len(o.Names) > 0 {
		object += " of " + strings.Join(o.Names, ", ")
	}
	left := false
	for _, key := range o.WithoutKeys {
		n, unmigrated := result.countEncryptedWith(key)
		left = left || n > 0
		switch {
		case n > 0 && key == notEncrypted:
			fmt.Fprintln(o.Out, o.Paint(cli.Red, "Not encrypted: "+assess.FormatObjects(n)+"."+unmigrated))
		case n > 0:
			fmt.Fprintln(o.Out, o.Paint(cli.Red,
				"Encrypted with "+key+": "+assess.FormatObjects(n)+". Keep this key."+unmigrated))
		case key == notEncrypted:
			fmt.Fprintf(o.Out, "Every %s is encrypted%s.\n", object, result.exceptions())
		default:
			fmt.Fprintf(o.Out, "No %s is encrypted with %s.\n", object, key)
		}
	}
	if len(o.WithoutKeys) > 0 && !left {
		fmt.Fprintln(o.Out, "Old revisions and backups of etcd were not read: they may have objects as they were before.")
	}
}

// keyID stands between a key of KMS v2 and its ID.
const keyID = " key ID "

// encryption names what an object is encrypted with, or nothing.
func encryption(form stored.Form) string {
	if form.Format != stored.Encrypted {
		return ""
	}
	name := form.Provider + ":" + form.Key
	if form.KeyID != "" {
		name += keyID + form.KeyID
	}
	return name
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
