#!/usr/bin/env bash
# Builds a manager with a mistake, into _output/mutants/<name>: test/upgrade/mutants/<name>.patch is applied to a copy
# of the sources. The tests of test/upgrade have to fail with it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name="${1:?name a file of test/upgrade/mutants, without .patch}"
out="_output/mutants/${name}"
patch="test/upgrade/mutants/${name}.patch"
rm -rf "${out}"
mkdir -p "${out}"
replaced=()
while read -r file; do
  mkdir -p "${out}/sources/$(dirname "${file}")"
  cp "${file}" "${out}/sources/${file}"
  replaced+=("\"${ROOT}/${file}\": \"${ROOT}/${out}/sources/${file}\"")
done < <(sed -n 's|^+++ b/||p' "${patch}")
git apply --directory="${out}/sources" "${patch}"
printf '{"Replace": {%s}}\n' "$(IFS=,; echo "${replaced[*]}")" >"${out}/overlay.json"
CGO_ENABLED=0 go build -overlay "${out}/overlay.json" -o "${out}/" ./cmd/svm-controller-manager ./cmd/kubectl-svm
