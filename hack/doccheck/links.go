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
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

var (
	fence      = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inlineCode = regexp.MustCompile("`[^`]*`")
	target     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// brokenLinks describes each link to a file or a heading that does not exist. Links to the web are not followed.
func brokenLinks(documents []string) (broken []string, err error) {
	for _, document := range documents {
		content, err := os.ReadFile(document)
		if err != nil {
			return nil, err
		}
		text := inlineCode.ReplaceAllString(fence.ReplaceAllString(string(content), ""), "")
		for _, match := range target.FindAllStringSubmatch(text, -1) {
			link, err := url.Parse(match[1])
			if err == nil && link.Scheme == "" {
				err = follow(document, link)
			}
			if err != nil {
				broken = append(broken, fmt.Sprintf("%s: the link %s: %v", document, match[1], err))
			}
		}
	}
	return broken, nil
}

// follow returns an error if a link of a document leads nowhere.
func follow(document string, link *url.URL) error {
	file := document
	if link.Path != "" {
		file = filepath.Join(filepath.Dir(document), link.Path)
	}
	if link.Fragment == "" {
		_, err := os.Stat(file)
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !anchors(string(content))[link.Fragment] {
		return fmt.Errorf("%s has no such heading", file)
	}
	return nil
}

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(content string) map[string]bool {
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(content, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, linkText.ReplaceAllString(match[1], "$1"))
		unique := name
		for n := 1; anchors[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		anchors[unique] = true
	}
	return anchors
}

// architecture names files of Go, often by the end of their paths.
const architecture = "docs/architecture.md"

var goFile = regexp.MustCompile("`([a-z][\\w/]*\\.go)`")

// missingFiles describes each file of Go that a document names and that is not below root.
func missingFiles(document, root string) (missing []string, err error) {
	content, err := os.ReadFile(document)
	if err != nil {
		return nil, err
	}
	var paths []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "_output" || entry.Name() == ".git"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			paths = append(paths, "/"+filepath.ToSlash(path))
		}
		return nil
	})
	for _, match := range goFile.FindAllStringSubmatch(string(content), -1) {
		if !slices.ContainsFunc(paths, func(path string) bool { return strings.HasSuffix(path, "/"+match[1]) }) {
			missing = append(missing, fmt.Sprintf("%s names the file %s, which does not exist", document, match[1]))
		}
	}
	return missing, err
}
