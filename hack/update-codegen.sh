#!/usr/bin/env bash

# Copyright The svm-controller-manager Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

# Generates everything that follows from the API types: deepcopy, apply configurations, clientset, listers, informers
# and CustomResourceDefinitions. Needs Go and nothing else; the generators are built from hack/tools/codegen.
#
# usage: hack/update-codegen.sh [tree]
# With an argument it works on that copy of the tree instead (hack/verify-codegen.sh does); the generators stay this
# tree's.

set -o errexit -o nounset -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TREE=$(cd "${1:-${ROOT}}" && pwd)
TOOLS="${ROOT}/_output/tools"
MODULE=sigs.k8s.io/svm-api
STAGING="${TREE}/staging/src/${MODULE}"
BOILERPLATE="${TREE}/hack/boilerplate.go.txt"
API=migration/v1alpha1

# Every module is taken by itself, as its users have it. A workspace would hide a missing requirement.
export GOWORK=off
# The generators run here, whatever the build is for.
unset GOOS GOARCH
# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0

echo "building the generators" >&2
GOBIN="${TOOLS}" go -C "${ROOT}/hack/tools/codegen" install tool

cd "${STAGING}"

# Generated directories go first, so that what is generated no longer does not stay.
rm -rf client/applyconfiguration client/clientset client/informers client/listers
find . -name 'zz_generated.*.go' -delete

# controller-gen needs no other generated code, and the definitions are where a mistake in a marker shows first.
echo "generating CustomResourceDefinitions" >&2
mkdir -p "${TREE}/build/manifests/crds" migration/crds
rm -f "${TREE}/build/manifests/crds/migration.k8s.io_"*.yaml migration/crds/*.yaml
"${TOOLS}/controller-gen" crd:crdVersions=v1 \
  paths="./${API}" \
  output:crd:artifacts:config="${TREE}/build/manifests/crds"
# go:embed reaches no file outside of its module, hence the copies.
cp "${TREE}/build/manifests/crds/migration.k8s.io_"*.yaml migration/crds/

echo "generating deepcopy" >&2
"${TOOLS}/deepcopy-gen" \
  --go-header-file="${BOILERPLATE}" \
  --output-file=zz_generated.deepcopy.go \
  "./${API}"

# Apply configurations, and the fake clientset with them, need a schema that says how lists and maps merge. It is made
# of Go code that nobody else needs, hence the directory that goes again; its underscore hides it from "./...".
echo "generating apply configurations" >&2
SCHEMA_DIR=_modelschema
trap 'rm -rf "${STAGING:?}/${SCHEMA_DIR}"' EXIT
mkdir -p "${SCHEMA_DIR}"
"${TOOLS}/openapi-gen" \
  --go-header-file="${BOILERPLATE}" \
  --output-dir="${SCHEMA_DIR}" \
  --output-pkg=main \
  --output-file=definitions.go \
  --report-filename=/dev/null \
  "${MODULE}/${API}" \
  k8s.io/apimachinery/pkg/apis/meta/v1 \
  k8s.io/apimachinery/pkg/runtime
cp "${ROOT}/hack/tools/codegen/modelschema/main.go" "${SCHEMA_DIR}/"
go run "${SCHEMA_DIR}/main.go" "${SCHEMA_DIR}/definitions.go" >"${SCHEMA_DIR}/schema.json"
"${TOOLS}/applyconfiguration-gen" \
  --go-header-file="${BOILERPLATE}" \
  --output-dir=client/applyconfiguration \
  --output-pkg="${MODULE}/client/applyconfiguration" \
  --openapi-schema="${SCHEMA_DIR}/schema.json" \
  "${MODULE}/${API}"

echo "generating the clientset" >&2
"${TOOLS}/client-gen" \
  --go-header-file="${BOILERPLATE}" \
  --clientset-name=versioned \
  --input-base="" \
  --input="${MODULE}/${API}" \
  --apply-configuration-package="${MODULE}/client/applyconfiguration" \
  --output-dir=client/clientset \
  --output-pkg="${MODULE}/client/clientset"

echo "generating listers" >&2
"${TOOLS}/lister-gen" \
  --go-header-file="${BOILERPLATE}" \
  --output-dir=client/listers \
  --output-pkg="${MODULE}/client/listers" \
  "${MODULE}/${API}"

echo "generating informers" >&2
"${TOOLS}/informer-gen" \
  --go-header-file="${BOILERPLATE}" \
  --versioned-clientset-package="${MODULE}/client/clientset/versioned" \
  --listers-package="${MODULE}/client/listers" \
  --output-dir=client/informers \
  --output-pkg="${MODULE}/client/informers" \
  "${MODULE}/${API}"
