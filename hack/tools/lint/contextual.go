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
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// contextualAnalyzer holds the project to contextual logging and to contexts that are handed down.
var contextualAnalyzer = &analysis.Analyzer{
	Name: "contextual",
	Doc: "report logging that does not go through a logger from the context, and contexts made from nothing, " +
		"outside of main packages and test/",
	Run: runContextual,
}

// klogContextual are the functions of klog that contextual logging needs.
var klogContextual = map[string]bool{
	"FromContext": true, "NewContext": true, "LoggerWithName": true, "LoggerWithValues": true,
	"KObj": true, "KRef": true, "KObjs": true, "KObjSlice": true, "Format": true,
}

func runContextual(pass *analysis.Pass) (any, error) {
	if pass.Pkg.Name() == "main" || strings.HasPrefix(pass.Pkg.Path(), rootModule+"/test/") {
		return nil, nil
	}
	for _, file := range pass.Files {
		if strings.HasSuffix(pass.Fset.File(file.Pos()).Name(), "_test.go") || ast.IsGenerated(file) {
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			fn, ok := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
			if !ok || fn.Pkg() == nil || fn.Signature().Recv() != nil {
				return true
			}
			switch fn.Pkg().Path() {
			case "k8s.io/klog/v2":
				if !klogContextual[fn.Name()] {
					pass.Reportf(call.Pos(), "klog.%s is not contextual: use klog.FromContext(ctx)", fn.Name())
				}
			case "log":
				pass.Reportf(call.Pos(), "log.%s: use klog.FromContext(ctx)", fn.Name())
			case "context":
				if fn.Name() == "Background" || fn.Name() == "TODO" {
					pass.Reportf(call.Pos(), "context.%s in a library: take a context from the caller", fn.Name())
				}
			}
			return true
		})
	}
	return nil, nil
}
