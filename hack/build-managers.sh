#!/usr/bin/env bash
# Builds the managers, and the kubectl plugin, that integration tests run into _output/test. Arguments, such as -race,
# are those of go build.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export CGO_ENABLED=0
if [[ " $* " == *" -race "* ]]; then
  export CGO_ENABLED=1
fi
mkdir -p _output/test
build_with_progress "the managers of the tests" "$@" -ldflags=-w -o _output/test/ -- \
  ./cmd/svm-controller-manager ./cmd/kubectl-svm ./test/integration/manager/plugin
