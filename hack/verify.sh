#!/usr/bin/env bash
# Runs every hack/verify-*.sh, tells how long each took, and at the end which failed. The linter runs beside all others,
# whose output follows its own.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work="$(mktemp -d)"
others=
finish() {
  if [[ -n "${others}" ]]; then kill "${others}" 2>/dev/null || true; fi
  rm -rf "${work}"
}
trap finish EXIT

# verify STEP... runs all of these, also after a failure.
verify() {
  local step began
  for step; do
    echo "verify ${step}"
    began="${SECONDS}"
    "hack/verify-${step}.sh" || echo "${step}" >>"${work}/failed"
    echo "verify ${step}: $((SECONDS - began)) s"
  done
}

verify headers format modules codegen chart releases docs mutants >"${work}/output" 2>&1 &
others=$!
verify lint
wait "${others}" || echo "a step that did not end" >>"${work}/failed"
others=
cat "${work}/output"
if [[ -s "${work}/failed" ]]; then
  echo "failed: $(xargs <"${work}/failed")" >&2
  exit 1
fi
