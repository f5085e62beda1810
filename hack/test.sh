#!/usr/bin/env bash
# Runs what `make test` runs, ends at the first failure, and tells at the end how long each step took.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS="$(mktemp)"
export STEPS

finish() {
  local code=$?
  printf '\n'
  cat "${STEPS}"
  rm -f "${STEPS}"
  printf '%-24s %4d s, exit code %d\n' "make test" "${SECONDS}" "${code}"
}
trap finish EXIT

make --no-print-directory verify
make --no-print-directory test-binaries
make --no-print-directory unit-raced
make --no-print-directory e2e-binaries
make --no-print-directory unit-plain-and-simulation
# Integration tests wait much of the time. The conformance suite and chaos follow those that end first.
make --no-print-directory -j2 integration-of-managers integration-in-process e2e-quick chaos-in-short
