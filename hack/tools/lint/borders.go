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
	"path"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const (
	rootModule = "sigs.k8s.io/svm-controller-manager"
	apiModule  = "sigs.k8s.io/svm-api"
)

// bordersAnalyzer keeps the rooms of the repository apart.
var bordersAnalyzer = &analysis.Analyzer{
	Name: "borders",
	Doc: "report imports across borders: nothing imports k8s.io/kubernetes, only tests import test/, " +
		"pkg/ never imports cmd/, controllers never import each other, " +
		"the API module imports nothing of the main module",
	Run: runBorders,
}

func runBorders(pass *analysis.Pass) (any, error) {
	from := strings.TrimSuffix(strings.TrimSuffix(pass.Pkg.Path(), "_test"), ".test")
	for _, file := range pass.Files {
		isTest := strings.HasSuffix(pass.Fset.File(file.Pos()).Name(), "_test.go")
		for _, spec := range file.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue
			}
			if why := forbidden(from, to, isTest); why != "" {
				pass.Reportf(spec.Pos(), "%s must not import %s: %s", from, to, why)
			}
		}
	}
	return nil, nil
}

// forbidden says why from must not import to, or nothing.
func forbidden(from, to string, isTest bool) string {
	in := func(pkg string, folder ...string) bool {
		prefix := path.Join(append([]string{rootModule}, folder...)...)
		return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
	}
	switch {
	case to == "k8s.io/kubernetes" || strings.HasPrefix(to, "k8s.io/kubernetes/"):
		return "it is no library"
	case in(to, "test") && !in(from, "test") && !isTest:
		return "test/ is for tests"
	case (from == apiModule || strings.HasPrefix(from, apiModule+"/")) && in(to):
		return "the API module stands alone"
	case in(from, "pkg") && in(to, "cmd"):
		return "libraries do not know the programs"
	}
	if a, b := controller(from), controller(to); a != "" && b != "" && a != b {
		return "controllers never import each other; what two need lives above them"
	}
	return ""
}

// controller returns the name of the controller that a package belongs to.
func controller(pkg string) string {
	rest, ok := strings.CutPrefix(pkg, rootModule+"/pkg/controller/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}
