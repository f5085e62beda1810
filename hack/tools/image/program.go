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
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// program is a program that go build made.
type program struct {
	name             string
	os, architecture string
	content          []byte
	info             *debug.BuildInfo
}

// readProgram reads a program that can run in the image, and that others can build as well.
func readProgram(path string) (*program, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("reading what %s was built from: %w", path, err)
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	if settings["GOOS"] != "linux" || settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
		return nil, fmt.Errorf("%s must be built with GOOS=linux, with CGO_ENABLED=0 because the image has no C library, "+
			"and with -trimpath because the path of a folder must not get into it", path)
	}
	return &program{filepath.Base(path), settings["GOOS"], settings["GOARCH"], content, info}, nil
}

type object map[string]any

// sbom returns a list of what the image was built from, as SPDX 2.3.
func (p *program) sbom(of release) ([]byte, error) {
	modules, err := p.modules(of)
	if err != nil {
		return nil, err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(p.content))
	title := strings.Join([]string{p.name, of.version, p.os, p.architecture}, "-")
	packages := []object{{
		"SPDXID":           "SPDXRef-Program",
		"name":             p.info.Path,
		"versionInfo":      of.version,
		"downloadLocation": source,
		"filesAnalyzed":    false,
		"licenseDeclared":  "Apache-2.0",
		"checksums":        []object{{"algorithm": "SHA256", "checksumValue": sum}},
	}}
	relationships := []object{relationship("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Program")}
	for i, module := range modules {
		id := fmt.Sprintf("SPDXRef-Module-%d", i)
		packages = append(packages, object{
			"SPDXID":           id,
			"name":             module.Path,
			"versionInfo":      module.Version,
			"downloadLocation": "NOASSERTION",
			"filesAnalyzed":    false,
			"externalRefs": []object{{
				"referenceCategory": "PACKAGE-MANAGER",
				"referenceType":     "purl",
				"referenceLocator":  packageURL(module),
			}},
		})
		relationships = append(relationships, relationship("SPDXRef-Program", "DEPENDS_ON", id))
	}
	return json.MarshalIndent(object{
		"spdxVersion":       "SPDX-2.3",
		"dataLicense":       "CC0-1.0",
		"SPDXID":            "SPDXRef-DOCUMENT",
		"name":              title,
		"documentNamespace": fmt.Sprintf("%s/spdx/%s-%s", source, title, sum),
		"creationInfo": object{
			"created":  of.created.Format(time.RFC3339),
			"creators": []string{"Organization: The svm-controller-manager Authors"},
		},
		"packages":      packages,
		"relationships": relationships,
	}, "", "  ")
}

func relationship(element, is, related string) object {
	return object{"spdxElementId": element, "relationshipType": is, "relatedSpdxElement": related}
}

// modules returns the modules that the program was built from, Go's standard library, and the module that the CA
// certificates of the image are from. Modules of this repository have the version of the release.
func (p *program) modules(of release) ([]debug.Module, error) {
	own, known := debug.ReadBuildInfo()
	if !known {
		own = &debug.BuildInfo{}
	}
	roots := slices.IndexFunc(own.Deps, func(m *debug.Module) bool { return m.Path == rootsModule })
	if roots < 0 {
		return nil, fmt.Errorf("this program does not know which version of %s it was built from", rootsModule)
	}
	modules := []debug.Module{{Path: "stdlib", Version: p.info.GoVersion}}
	for _, module := range slices.Concat([]*debug.Module{&p.info.Main}, p.info.Deps, own.Deps[roots:roots+1]) {
		if module.Replace != nil && module.Replace.Version != "" {
			module = module.Replace
		}
		if module.Version == "" || module.Version == "(devel)" || module.Replace != nil {
			module = &debug.Module{Path: module.Path, Version: of.version}
		}
		modules = append(modules, *module)
	}
	return modules, nil
}

// packageURL names a module as databases of vulnerabilities do.
func packageURL(module debug.Module) string {
	version := strings.ReplaceAll(strings.TrimPrefix(module.Version, "go"), "+", "%2B")
	return "pkg:golang/" + strings.ToLower(module.Path) + "@" + version
}
