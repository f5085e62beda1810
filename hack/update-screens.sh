#!/usr/bin/env bash
# Draws docs/images/kubectl-svm.svg from what "make demo" prints, and docs/images/dashboard.svg from what the test of
# monitoring sees, which takes some minutes each. It is not part of 'make update': each run has other times and names.
#
# usage: hack/update-screens.sh [recording]
# The recording is what the demo printed on a terminal (script --return --command 'make demo' recording).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

recording="${1:-}"
if [[ -z "${recording}" ]]; then
  recording="$(mktemp)"
  trap 'rm -f "${recording}"' EXIT
  script --quiet --return --command 'make demo' "${recording}"
fi
CGO_ENABLED=0 go run ./hack/screens <"${recording}" >docs/images/kubectl-svm.svg.new \
  'kubectl svm status=MigrationFailed' 'kubectl svm denied=' 'kubectl svm status=yes    v2'
mv docs/images/kubectl-svm.svg.new docs/images/kubectl-svm.svg

hack/build-controlplane.sh etcd kube-apiserver prometheus promtool
hack/build-managers.sh
SVM_TEST_BINARIES="${ROOT}/_output/test" CGO_ENABLED=0 go test -count=1 ./test/integration/monitoring \
  -run 'TestMonitoring$' -timeout 30m -args -picture="${ROOT}/docs/images/dashboard.svg"
