#!/usr/bin/env bash
# conformance.sh KSVM runs the conformance suite against each implementation on a control plane of its own, and writes
# the reports into test/e2e/reports. KSVM is a folder with the programs and manifests of kube-storage-version-migrator;
# without it that report stays as it is. A spec that fails is what a report is for, so it does not end the script.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ksvm="$1"

# report NAME FLAG... runs the suite and takes its report.
report() {
  local name="$1" made="_output/reports/$1"
  shift
  rm -rf "${made}"
  _output/bin/e2e-local --implementation="${name}" --report-dir="${made}" "$@" ||
    echo "${name}: some specs failed, see ${made}/report.yaml" >&2
  cp "${made}/report.yaml" "test/e2e/reports/${name}.yaml"
}

report svm --implementation-version="$(git rev-parse --short=12 HEAD)"
# Its migrator waits for the cache of the garbage collector, which takes a minute or two for each new resource.
report in-tree --procs=8 --patience=6m \
  --implementation-version="$(_output/bin/kube-controller-manager --version | cut -d' ' -f2)"
if [[ -n "${ksvm}" ]]; then
  # Its trigger looks every ten minutes.
  report kube-storage-version-migrator --ksvm="${ksvm}" --procs=8 --patience=12m \
    --implementation-version="${KSVM_VERSION:-unknown}"
fi
