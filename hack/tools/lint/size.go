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
	"bytes"
	"go/ast"
	"strings"
	"unicode/utf8"

	"golang.org/x/tools/go/analysis"
)

// limits are the largest sizes that a reader is expected to cope with.
type limits struct {
	line     int // characters
	function int // lines, with the signature; functions in tests are exempt, because tables are long
	file     int // lines
}

var sizeAnalyzer = newSizeAnalyzer(limits{line: 120, function: 60, file: 400})

// newSizeAnalyzer returns an analyzer of the files that people write.
func newSizeAnalyzer(most limits) *analysis.Analyzer {
	run := func(pass *analysis.Pass) (any, error) {
		for _, file := range pass.Files {
			if err := checkSize(pass, file, most); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	return &analysis.Analyzer{Name: "size", Doc: "limit the length of lines, functions and files", Run: run}
}

func checkSize(pass *analysis.Pass, file *ast.File, most limits) error {
	if ast.IsGenerated(file) {
		return nil
	}
	positions := pass.Fset.File(file.FileStart)
	content, err := pass.ReadFile(positions.Name())
	if err != nil {
		return err
	}
	lines := bytes.Split(bytes.TrimSuffix(content, []byte("\n")), []byte("\n"))
	for i, line := range lines {
		// A marker for a code generator, such as "// +kubebuilder:…", cannot be broken.
		marker := bytes.HasPrefix(bytes.TrimSpace(line), []byte("// +"))
		if n := utf8.RuneCount(line); n > most.line && !marker && i < positions.LineCount() {
			pass.Reportf(positions.LineStart(i+1), "a line has %d characters, at most %d fit", n, most.line)
		}
	}
	if len(lines) > most.file {
		pass.Reportf(file.Package, "the file has %d lines: split it, at most %d are readable", len(lines), most.file)
	}
	if strings.HasSuffix(positions.Name(), "_test.go") {
		return nil
	}
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := positions.Line(function.End()) - positions.Line(function.Pos()) + 1; n > most.function {
			pass.Reportf(function.Name.Pos(), "function %s has %d lines: split it, at most %d are readable",
				function.Name.Name, n, most.function)
		}
	}
	return nil
}
