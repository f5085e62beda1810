#!/usr/bin/env bash
# Draws docs/images/kubectl-svm.svg from what "make demo" prints, which takes some minutes. It is not part of
# 'make update': each run has other times and names.
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
