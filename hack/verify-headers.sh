#!/usr/bin/env bash
# Fails where a Go file, generated or not, does not carry the license header.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

header=hack/boilerplate.go.txt
bad="$(existing '*.go' ':!:*/testdata/*' | xargs awk -v header="${header}" '
  FILENAME == header { want[++lines] = $0; next }
  FNR == 1 { line = 0; constrained = /^\/\/go:build / }
  # A build constraint may stand above the header, as generators put it.
  constrained { constrained = NF > 0; next }
  line < lines && $0 != want[++line] { print FILENAME; nextfile }
' "${header}")"
if [[ -n "${bad}" ]]; then
  echo "no license header, run 'make update':" >&2
  echo "${bad}" >&2
  exit 1
fi
