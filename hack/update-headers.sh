#!/usr/bin/env bash
# Puts the license header on every Go file that has none.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

sources | while read -r file; do
  if ! grep -q 'The svm-controller-manager Authors' "${file}"; then
    { cat hack/boilerplate.go.txt; echo; cat "${file}"; } > "${file}.new"
    mv "${file}.new" "${file}"
  fi
done
