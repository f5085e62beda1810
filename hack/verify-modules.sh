#!/usr/bin/env bash
# Fails where a module file is not tidy.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

modules | while read -r module; do
  if ! difference="$(cd "${module}" && GOWORK=off go mod tidy -diff)"; then
    echo "${module}/go.mod is not tidy, run 'make update':" >&2
    echo "${difference}" >&2
    exit 1
  fi
done
