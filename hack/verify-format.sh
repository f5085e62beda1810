#!/usr/bin/env bash
# Fails where a Go file is not formatted.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

unformatted="$(sources | xargs gofmt -s -l)"
if [[ -n "${unformatted}" ]]; then
  echo "not formatted, run 'make update':" >&2
  echo "${unformatted}" >&2
  exit 1
fi
