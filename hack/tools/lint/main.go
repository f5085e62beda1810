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

// Lint is a vet tool with the rules of this project: `go vet -vettool=<this> ./...`. Being a vet tool, its results are
// kept in Go's build cache. It includes what go vet checks by itself, so that packages are analyzed only once.
package main

import (
	"slices"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/timonwong/loggercheck"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
)

// disabledRules are rules of the libraries that this project does not follow.
var disabledRules = map[string]bool{
	"ST1000": true, // a package comment in every file's package: doc.go or the main file has it
	"ST1003": true, // initialisms: generated code
	"ST1016": true, // receiver names: generated code
	"ST1020": true, // comment forms of exported names: generated code
	"ST1021": true,
	"ST1022": true,
}

func main() {
	analyzers := append(slices.Clone(vet.Suite),
		quiet(errcheck.Analyzer, ignorable),
		loggercheck.NewAnalyzer(loggercheck.WithRequireStringKey(true), loggercheck.WithNoPrintfLike(true)),
		bordersAnalyzer,
		contextualAnalyzer,
		pureAnalyzer,
		sizeAnalyzer,
	)
	for _, set := range [][]*lint.Analyzer{staticcheck.Analyzers, simple.Analyzers, stylecheck.Analyzers} {
		for _, a := range set {
			if !disabledRules[a.Analyzer.Name] {
				analyzers = append(analyzers, quiet(a.Analyzer, nothing))
			}
		}
	}
	unitchecker.Main(analyzers...)
}
