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
	"go/ast"
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// quiet returns the analyzer without what it says of generated files and of calls for which skip is true.
func quiet(a *analysis.Analyzer, skip func(*ast.File, token.Pos) bool) *analysis.Analyzer {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		report := pass.Report
		pass.Report = func(d analysis.Diagnostic) {
			for _, file := range pass.Files {
				if file.FileStart <= d.Pos && d.Pos <= file.FileEnd && (ast.IsGenerated(file) || skip(file, d.Pos)) {
					return
				}
			}
			report(d)
		}
		return run(pass)
	}
	return a
}

func nothing(*ast.File, token.Pos) bool { return false }

// ignorable is true for errors that nobody can do anything about: of a deferred Close, which ends something that was
// read, and of printing to a terminal.
func ignorable(file *ast.File, pos token.Pos) bool {
	found := false
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.DeferStmt:
			selector, ok := n.Call.Fun.(*ast.SelectorExpr)
			found = found || ok && selector.Sel.Name == "Close" && n.Pos() <= pos && pos <= n.End()
		case *ast.ExprStmt:
			call, ok := n.X.(*ast.CallExpr)
			if !ok || pos < n.Pos() || n.End() < pos {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := selector.X.(*ast.Ident)
			found = found || ok && pkg.Name == "fmt" && strings.HasPrefix(selector.Sel.Name, "Fprint")
		}
		return !found
	})
	return found
}
