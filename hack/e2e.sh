#!/usr/bin/env bash
# e2e.sh IMPLEMENTATION REPORTS LABELS KUBECONFIG FLAG... runs the conformance suite with reports in a folder: against
# the cluster of a kubeconfig, or, if that is empty, on a control plane of its own. Flags are those of the suite,
# --procs and --focus of Ginkgo, and without a kubeconfig those of test/e2e/local.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

implementation="$1" reports="$2" labels="$3" kubeconfig="$4"
shift 4
if [[ -z "${kubeconfig}" ]]; then
  exec _output/bin/e2e-local --implementation="${implementation}" --report-dir="${reports}" \
    --label-filter="${labels}" "$@"
fi
mkdir -p "${reports}"
ginkgo=(--procs=2) flags=()
for flag in "$@"; do
  case "${flag}" in
    --procs=* | --focus=*) ginkgo+=("${flag}") ;;
    *) flags+=("${flag}") ;;
  esac
done
exec _output/bin/ginkgo "${ginkgo[@]}" --label-filter="${labels}" --timeout=3h --silence-skips _output/bin/e2e.test -- \
  --kubeconfig="$(realpath "${kubeconfig}")" --implementation="${implementation}" \
  --report-dir="$(realpath "${reports}")" "${flags[@]}"
