#!/usr/bin/env bash
# step.sh NAME COMMAND... runs a command, says when it begins and how long it took, and leaves that in the file STEPS.
# If it fails, STEPS has what tests said as well: in the output that stands between the logs of servers, which are long.
set -o nounset -o pipefail

name="$1"
shift
echo "==> ${name}"
# What tests, the Go compiler, the race detector and hack/verify.sh say.
said='^ *--- FAIL|^ +[a-z0-9_]+\.go:[0-9]+: |^FAIL|^panic: |WARNING: DATA RACE|^failed: |\.go:[0-9]+:[0-9]+: '
output="$(mktemp)"
trap 'rm -f "${output}"' EXIT
code=0
"$@" 2>&1 | tee -i "${output}" || code=$? # After Ctrl-C it still shows what the command says while it ends.
result=passed
if ((code != 0)); then
  result=FAILED
fi
line="$(printf '%-24s %4d s, %s' "${name}" "${SECONDS}" "${result}")"
echo "<== ${line}"
if [[ -n "${STEPS:-}" ]]; then
  {
    echo "${line}"
    if ((code != 0)); then
      grep -E "${said}" "${output}" | tail -n 60 | cut -c -300
    fi
  } >>"${STEPS}"
fi
exit "${code}"
