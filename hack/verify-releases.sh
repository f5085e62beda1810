#!/usr/bin/env bash
# Fails if pkg/releases/known.txt is not what the sources of Kubernetes say.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0
if ! go run ./hack/releases | diff -u pkg/releases/known.txt - >&2; then
  echo "pkg/releases/known.txt is out of date, run 'make update'" >&2
  exit 1
fi
