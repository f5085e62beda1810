#!/usr/bin/env bash
# step.sh NAME COMMAND... runs a command, says when it begins and how long it took, and leaves that in the file STEPS.
set -o nounset

name="$1"
shift
echo "==> ${name}"
code=0
"$@" || code=$?
result=passed
if ((code != 0)); then
  result=FAILED
fi
line="$(printf '%-24s %4d s, %s' "${name}" "${SECONDS}" "${result}")"
echo "<== ${line}"
if [[ -n "${STEPS:-}" ]]; then
  echo "${line}" >>"${STEPS}"
fi
exit "${code}"
