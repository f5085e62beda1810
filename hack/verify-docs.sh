#!/usr/bin/env bash
# Fails where docs/flags.md is not what the manager's flags say.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0
if ! go run ./hack/flagdocs | diff -u docs/flags.md - >&2; then
  echo "docs/flags.md is out of date, run 'make update'" >&2
  exit 1
fi
