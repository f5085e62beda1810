#!/usr/bin/env bash
# Runs every hack/verify-*.sh and tells of all that fail.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

failed=()
for step in headers format modules codegen chart releases docs mutants lint; do
  echo "verify ${step}"
  "hack/verify-${step}.sh" || failed+=("${step}")
done
if (( ${#failed[@]} )); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
