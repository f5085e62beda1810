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

// Doccheck fails if documents are not true: if a link between two of them leads nowhere, if docs/operations.md does not
// have exactly those reasons of conditions and events that the manager writes, or docs/preflight.md not exactly those
// codes that kubectl svm preflight prints. Its arguments are the documents.
package main

import (
	"fmt"
	"os"
)

func main() {
	problems, err := check(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Fprintln(os.Stderr, problem)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}

func check(documents []string) ([]string, error) {
	problems, err := brokenLinks(documents)
	if err != nil {
		return nil, err
	}
	missing, err := missingFiles(architecture, ".")
	if err != nil {
		return nil, err
	}
	problems = append(problems, missing...)
	for _, reference := range references {
		wrong, err := reference.check()
		if err != nil {
			return nil, err
		}
		problems = append(problems, wrong...)
	}
	return problems, nil
}
