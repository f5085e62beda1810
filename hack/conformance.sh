#!/usr/bin/env bash
# conformance.sh KSVM runs the conformance suite against each implementation on a control plane of its own, and writes
# the reports into test/e2e/reports. KSVM is a folder with the programs and manifests of kube-storage-version-migrator;
# without it that report stays as it is. A spec that fails is what a report is for, so it does not end the script.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ksvm="$1"

# run NAME FLAG... runs the suite with reports in a folder of that name.
run() {
  local name="$1"
  shift
  rm -rf "_output/reports/${name}"
  _output/bin/e2e-local --report-dir="_output/reports/${name}" "$@" ||
    echo "${name}: some specs failed, see _output/reports/${name}/report.yaml" >&2
}

keep() { cp "_output/reports/$1/report.yaml" "test/e2e/reports/$1.yaml"; }

run svm --implementation=svm --implementation-version="$(git rev-parse --short=12 HEAD)"
keep svm

# Its migrator waits for the cache of the garbage collector, which takes a minute or two for each new resource.
run in-tree --implementation=in-tree --procs=8 --patience=6m \
  --implementation-version="$(_output/bin/kube-controller-manager --version | cut -d' ' -f2)"
keep in-tree

if [[ -n "${ksvm}" ]]; then
  # It migrates one resource at a time and tries a denied object for ever, so specs run one at a time. Its trigger looks
  # every ten minutes, so specs about what it records take long: all of them take about two hours.
  name=kube-storage-version-migrator
  flags=(--implementation="${name}" --ksvm="${ksvm}" --procs=1 --implementation-version="${KSVM_VERSION:-unknown}")
  run "${name}-1" "${flags[@]}" --label-filter='!Feature:Knowledge' --patience=90s
  run "${name}-2" "${flags[@]}" --label-filter='Feature:Knowledge' --patience=12m
  _output/bin/e2e-local --report-dir="_output/reports/${name}" \
    --merge="_output/reports/${name}-1/report.yaml,_output/reports/${name}-2/report.yaml"
  keep "${name}"
fi
