//go:build ignore

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

// This program prints the OpenAPI definitions next to it as a document that applyconfiguration-gen reads. It is copied
// beside the definitions that openapi-gen writes, into package main, and run there: see hack/update-codegen.sh.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

func main() {
	if err := printDocument(GetOpenAPIDefinitions); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printDocument(definitions common.GetOpenAPIDefinitions) error {
	document := spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "API types", Version: "unversioned"}},
		Definitions: spec.Definitions{},
	}}
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/definitions/" + modelName(name)) }
	for name, definition := range definitions(ref) {
		schema := definition.Schema
		// Types such as IntOrString have a second schema for version 2 of OpenAPI, which this document is in.
		if v2, ok := schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			schema = v2
		}
		document.Definitions[modelName(name)] = schema
	}
	return json.NewEncoder(os.Stdout).Encode(document)
}

// modelName is the name of a type in OpenAPI documents. Types of apimachinery come by that name, all others by their Go
// name.
func modelName(name string) string {
	if !strings.Contains(name, "/") {
		return name
	}
	return util.ToRESTFriendlyName(name)
}
