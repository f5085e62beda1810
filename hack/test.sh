#!/usr/bin/env bash
# Runs what `make test` runs, ends if a build or a test without servers fails, and tells at the end how long each took.
# What tests with servers left in the folder for temporary files is kept only if one failed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS="$(mktemp)"
export STEPS
# For temporary files of tests with servers: those that are killed leave some. The name is short, because sockets are in
# it. Tests run as other users, too. All other tests have the same folder each time: Go takes results of tests that ask
# for its name, as t.TempDir does, from its cache only then.
temporary="$(mktemp -d -t svm.XXXXXX)"
chmod 1777 "${temporary}"
# Linkers, compilers and tests need less processor time if they collect less garbage.
export GOGC="${GOGC:-400}"

finish() {
  local code=$?
  printf '\n'
  cat "${STEPS}"
  rm -f "${STEPS}"
  if ((code == 0)); then
    rm -rf "${temporary}" || true
  else
    echo "temporary files of tests with servers are in ${temporary}"
  fi
  printf '%-24s %4d s, exit code %d\n' "make test" "${SECONDS}" "${code}"
}
trap finish EXIT

# Each step begins when one before it has ended: the last packages of a step, and links, leave a processor idle.
make --no-print-directory -j2 unit-raced test-binaries e2e-binaries unit-plain-and-simulation
# Integration tests wait much of the time, so the conformance suite and checks of the sources run beside them, and chaos
# when one of these has ended. All of them run, also if some fail.
TMPDIR="${temporary}" make --no-print-directory -k -j5 NICE="nice -n 19" integration-monitoring integration-plain \
  integration-raced e2e-quick verify chaos-in-short
