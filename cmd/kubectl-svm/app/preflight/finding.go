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

package preflight

import (
	"cmp"
	"fmt"
	"slices"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// Level is how bad a finding is.
type Level string

const (
	// Error: the change fails, or objects become unreadable. The exit code is 2.
	Error Level = "ERROR"
	// Warning: something works less well than it should, or is not known.
	Warning Level = "WARNING"
	// Info: something that is good to know.
	Info Level = "INFO"
)

// Code names a kind of finding. docs/preflight.md has a section for each.
type Code string

// What is wrong today.
const (
	CodeEncodingsUnknown        Code = "EncodingsUnknown"
	CodeManagedFieldsNotServed  Code = "ManagedFieldsNotServed"
	CodeMigrationAPIMissing     Code = "MigrationAPIMissing"
	CodeMigrationFailed         Code = "MigrationFailed"
	CodeMigrationHeldBack       Code = "MigrationHeldBack"
	CodeNoManager               Code = "NoManager"
	CodeNotServed               Code = "NotServed"
	CodeObjectsDenied           Code = "ObjectsDenied"
	CodeOldEncodings            Code = "OldEncodings"
	CodeServersDisagree         Code = "ServersDisagree"
	CodeServersUnseen           Code = "ServersUnseen"
	CodeStorageStateOutdated    Code = "StorageStateOutdated"
	CodeStoredVersionsNotPruned Code = "StoredVersionsNotPruned"
)

// What stands in the way of another release or server.
const (
	CodeEncodingNotServed  Code = "EncodingNotServed"
	CodeEncodingUnreadable Code = "EncodingUnreadable"
	CodeNotServedByDefault Code = "NotServedByDefault"
	CodeReleaseUnknown     Code = "ReleaseUnknown"
	CodeResourceGone       Code = "ResourceGone"
)

// What stands in the way of another CustomResourceDefinition, or of one without a version.
const (
	CodeConversionRemoved        Code = "ConversionRemoved"
	CodeConversionWebhookMissing Code = "ConversionWebhookMissing"
	CodeDefinitionRefused        Code = "DefinitionRefused"
	CodeFieldsDropped            Code = "FieldsDropped"
	CodeManagerForbidden         Code = "ManagerForbidden"
	CodeNoDefinitions            Code = "NoDefinitions"
	CodeNoStorageState           Code = "NoStorageState"
	CodeStorageVersionChanges    Code = "StorageVersionChanges"
	CodeStorageVersionNotServed  Code = "StorageVersionNotServed"
	CodeVersionIsStorageVersion  Code = "VersionIsStorageVersion"
	CodeVersionMayBeStored       Code = "VersionMayBeStored"
	CodeVersionNotDefined        Code = "VersionNotDefined"
	CodeVersionSafeToDrop        Code = "VersionSafeToDrop"
)

// Documentation explains each code in a section.
const Documentation = "docs/preflight.md"

// Finding is something that stands in the way, or that is good to know before a change.
type Finding struct {
	Level Level `json:"level"`
	Code  Code  `json:"code"`
	// Resource is empty if the finding is about the whole cluster.
	Resource string `json:"resource,omitempty"`
	// Message says what is, why, and what to do.
	Message string `json:"message"`
}

// String returns the finding as a line.
func (f Finding) String() string {
	about := ""
	if f.Resource != "" {
		about = "(" + f.Resource + ") "
	}
	return fmt.Sprintf("%s [%s] %s%s", f.Level, f.Code, about, f.Message)
}

// Findings are the answer of the command.
type Findings []Finding

// Answer is what -o json prints.
type Answer struct {
	// Server is the address of the API server that was asked.
	Server   string   `json:"server,omitempty"`
	Findings Findings `json:"findings"`
}

func (fs *Findings) add(level Level, code Code, resource, format string, args ...any) {
	*fs = append(*fs, Finding{Level: level, Code: code, Resource: resource, Message: fmt.Sprintf(format, args...)})
}

// Count returns how many findings have a level.
func (fs Findings) Count(level Level) int {
	n := 0
	for _, f := range fs {
		if f.Level == level {
			n++
		}
	}
	return n
}

var levelOrder = []Level{Error, Warning, Info}

// sorted returns the findings, the worst first, each once.
func (fs Findings) sorted() Findings {
	sorted := slices.Clone(fs)
	slices.SortStableFunc(sorted, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(levelOrder, a.Level), slices.Index(levelOrder, b.Level)),
			cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Code, b.Code),
		)
	})
	return slices.Compact(sorted)
}

func (o *Options) print(findings Findings) error {
	if o.Output.Structured() {
		if findings == nil {
			findings = Findings{}
		}
		o.Output.PrintAnswer(o.Env, Answer{Server: o.Server(), Findings: findings})
	} else {
		for _, f := range findings {
			colour := cli.Plain
			switch f.Level {
			case Error:
				colour = cli.Red
			case Warning:
				colour = cli.Yellow
			}
			fmt.Fprintln(o.Out, o.Paint(colour, f.String()))
		}
		errors, warnings := findings.Count(Error), findings.Count(Warning)
		if errors+warnings == 0 {
			fmt.Fprintln(o.Out, "The command found nothing that stands in the way.")
		} else {
			fmt.Fprintf(o.Out, "Errors: %d, warnings: %d. %s explains the codes.\n", errors, warnings, Documentation)
		}
	}
	if findings.Count(Error) > 0 {
		return cli.NotSafe()
	}
	return nil
}
