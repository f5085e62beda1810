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
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// handbook is the document with the reasons of conditions and events.
const handbook = "docs/operations.md"

const wellKnown = "staging/src/sigs.k8s.io/svm-api/migration/v1alpha1/wellknown.go"

// reference is a table or the headings of a document, and the constants that these have to have.
type reference struct {
	document string
	// header begins the first line of the table, whose first column has the reasons. If it begins with #, it begins each
	// heading, which is a reason.
	header string
	// file and prefix tell the constants. Their values are the reasons.
	file, prefix string
	// left are reasons that the table leaves out, because they only point to another condition.
	left []string
}

var references = []reference{
	{document: handbook, header: "| reason in a StorageState |", file: wellKnown, prefix: "StateReason"},
	{
		document: handbook, header: "| condition, reason |", file: wellKnown, prefix: "MigrationReason",
		left: []string{"Finished"},
	},
	{
		document: handbook, header: "| reason on a StorageState |", file: "pkg/controller/svmtrigger/decide_events.go",
		prefix: "event",
	},
	{
		document: handbook, header: "| reason on a migration |", file: "pkg/controller/svmigrator/conditions.go",
		prefix: "Event",
	},
	{
		document: "docs/preflight.md", header: "###", file: "cmd/kubectl-svm/app/preflight/finding.go", prefix: "Code",
	},
}

// check describes each reason that the document lacks, or that no constant has.
func (r *reference) check() (wrong []string, err error) {
	constants, err := stringConstants(r.file, r.prefix)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(r.document)
	if err != nil {
		return nil, err
	}
	documented := codeIn(string(content), r.header)
	for _, reason := range constants {
		if !slices.Contains(documented, reason) && !slices.Contains(r.left, reason) {
			wrong = append(wrong, fmt.Sprintf("%s: %q lacks %s, a constant in %s", r.document, r.header, reason, r.file))
		}
	}
	for _, reason := range documented {
		if !slices.Contains(constants, reason) {
			wrong = append(wrong,
				fmt.Sprintf("%s: %q has %s, which is no constant in %s", r.document, r.header, reason, r.file))
		}
	}
	return wrong, nil
}

// stringConstants returns the values of the constants whose names begin with a prefix.
func stringConstants(file, prefix string) (values []string, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) || len(spec.Values) == 0 {
			return true
		}
		if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			value, _ := strconv.Unquote(literal.Value) // The parser has read it.
			values = append(values, value)
		}
		return true
	})
	if len(values) == 0 {
		return nil, fmt.Errorf("%s has no constants that begin with %s", file, prefix)
	}
	return values, nil
}

// reason is how reasons are written. The types of conditions, which stand beside some of them, are not reasons.
var (
	reason = regexp.MustCompile("`([A-Z][A-Za-z]+)`")
	types  = []string{"Waiting", "Running", "Succeeded", "Failed", "Migrated", "Agreed"}
)

// codeIn returns the reasons in the first column of the tables that begin with a header, or the headings that do.
func codeIn(content, header string) (found []string) {
	inside := false
	for line := range strings.Lines(content) {
		if heading, is := strings.CutPrefix(line, header+" "); is && header[0] == '#' {
			found = append(found, strings.TrimSpace(heading))
		}
		inside = strings.HasPrefix(line, header) || inside && strings.HasPrefix(line, "|")
		cells := strings.Split(line, "|")
		if !inside || len(cells) < 2 {
			continue
		}
		for _, match := range reason.FindAllStringSubmatch(cells[1], -1) {
			if !slices.Contains(types, match[1]) {
				found = append(found, match[1])
			}
		}
	}
	return found
}
