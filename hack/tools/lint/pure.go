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
	"go/types"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// pureAnalyzer keeps decisions pure: what a decide*.go file computes depends on its arguments alone.
var pureAnalyzer = &analysis.Analyzer{
	Name: "pure",
	Doc:  "report clients, contexts, loggers, clocks, randomness and I/O in decide*.go",
	Run:  runPure,
}

// impureImports are packages, and all below them, that a decision has no use for.
var impureImports = []string{
	"context", "io", "log", "math/rand", "net", "os", "sync",
	"k8s.io/client-go", "k8s.io/klog", "k8s.io/utils/clock", "sigs.k8s.io/svm-api/client",
}

// impureFunctions are functions of packages that a decision may use otherwise.
var impureFunctions = map[string]map[string]bool{
	"time": {
		"Now":       true,
		"Since":     true,
		"Until":     true,
		"Sleep":     true,
		"After":     true,
		"AfterFunc": true,
		"Tick":      true,
		"NewTimer":  true,
		"NewTicker": true,
	},
	"k8s.io/apimachinery/pkg/apis/meta/v1": {"Now": true},
}

func runPure(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		name := filepath.Base(pass.Fset.File(file.Pos()).Name())
		if !strings.HasPrefix(name, "decide") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue
			}
			for _, impure := range impureImports {
				if imported == impure || strings.HasPrefix(imported, impure+"/") {
					pass.Reportf(spec.Pos(), "a decision must not use %s: hand it values", imported)
				}
			}
		}
		ast.Inspect(file, func(node ast.Node) bool {
			identifier, ok := node.(*ast.Ident)
			if !ok {
				return true
			}
			fn, ok := pass.TypesInfo.Uses[identifier].(*types.Func)
			if ok && fn.Pkg() != nil && impureFunctions[fn.Pkg().Path()][fn.Name()] && fn.Signature().Recv() == nil {
				pass.Reportf(identifier.Pos(), "a decision must not use %s.%s: hand it the time", fn.Pkg().Name(), fn.Name())
			}
			return true
		})
	}
	return nil, nil
}
