#!/usr/bin/env bash
# Fails where a Go file, generated or not, does not carry the license header.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

header="$(cat hack/boilerplate.go.txt)"
lines="$(wc -l < hack/boilerplate.go.txt)"
bad=()
while read -r file; do
  # A build constraint may stand above the header, as generators put it.
  start="$(sed -e '/^\/\/go:build /,/^$/d' "${file}" | sed -n "1,${lines}p")"
  [[ "${start}" == "${header}" ]] || bad+=("${file}")
done < <(git ls-files --cached --others --exclude-standard -- '*.go' ':!:*/testdata/*' | while read -r file; do if [[ -e "${file}" ]]; then echo "${file}"; fi; done)
if (( ${#bad[@]} )); then
  echo "no license header, run 'make update':" >&2
  printf '%s\n' "${bad[@]}" >&2
  exit 1
fi
