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

# Fails if hack/update-codegen.sh would change, add or remove a file. It generates into a copy, so that it needs no
# clean work tree, leaves none changed, and sees files that git does not know of.

set -o errexit -o nounset -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
DIRS=(staging/src/sigs.k8s.io/svm-api build/manifests/crds)

# The generators take most of a minute of processor time. So what has passed is remembered beside Go's own results.
key=$(cd "${ROOT}" && { go version && find "${DIRS[@]}" hack/*-codegen.sh hack/boilerplate.go.txt hack/tools/codegen \
  -type f | LC_ALL=C sort | xargs sha256sum; } | sha256sum | cut -d ' ' -f 1)
passed="$(go env GOCACHE)/svm-codegen-${key}"
if [[ -e "${passed}" ]]; then
  exit 0
fi

COPY=$(mktemp -d)
trap 'rm -rf "${COPY}"' EXIT

mkdir -p "${COPY}/hack"
cp "${ROOT}/hack/boilerplate.go.txt" "${COPY}/hack/"
for dir in "${DIRS[@]}"; do
  mkdir -p "${COPY}/${dir}"
  if [[ -d "${ROOT}/${dir}" ]]; then
    cp -a "${ROOT}/${dir}/." "${COPY}/${dir}/"
  fi
done

"${ROOT}/hack/update-codegen.sh" "${COPY}"

result=0
for dir in "${DIRS[@]}"; do
  # -N shows a file that is on one side only as a difference, too.
  diff -Nru "${ROOT}/${dir}" "${COPY}/${dir}" || result=1
done
if ((result != 0)); then
  echo "generated files are out of date: run hack/update-codegen.sh and commit what it changes" >&2
else
  touch "${passed}"
fi
exit "${result}"
