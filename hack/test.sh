#!/usr/bin/env bash
# Runs what `make test` runs, ends after the first steps that fail, and tells at the end how long each took. What
# tests left in the folder for temporary files is kept only if one failed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS="$(mktemp)"
export STEPS
# The name is short, because sockets are in it. Tests run as other users, too.
TMPDIR="$(mktemp -d -t svm.XXXXXX)"
export TMPDIR
chmod 1777 "${TMPDIR}"
# Linkers, compilers and tests need less processor time if they collect less garbage.
export GOGC="${GOGC:-400}"

finish() {
  local code=$?
  printf '\n'
  cat "${STEPS}"
  rm -f "${STEPS}"
  if ((code == 0)); then
    rm -rf "${TMPDIR}" || true
  else
    echo "temporary files are in ${TMPDIR}"
  fi
  printf '%-24s %4d s, exit code %d\n' "make test" "${SECONDS}" "${code}"
}
trap finish EXIT

# Each step begins when one before it has ended: the last packages of a step, and links, leave a processor idle.
make --no-print-directory -j2 verify unit-raced test-binaries e2e-binaries unit-plain-and-simulation
# Integration tests wait much of the time, so the conformance suite runs beside them, and chaos after the suite. All of
# them run, also if some fail.
make --no-print-directory -k -j3 integration-plain integration-raced e2e-quick chaos-in-short
