#!/usr/bin/env bash
# Builds the managers, and the kubectl plugin, that integration tests run into _output/test. Arguments, such as -race,
# are those of go build for the managers. The plugin is built without them, because tests start it hundreds of times.
# Its packages that have several goroutines are raced in unit tests and in test/integration/terminal.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export CGO_ENABLED=0
mkdir -p _output/test
build_with_progress "the plugin of the tests" -ldflags=-w -o _output/test/ -- ./cmd/kubectl-svm
if [[ " $* " == *" -race "* ]]; then
  export CGO_ENABLED=1
fi
build_with_progress "the managers of the tests" "$@" -ldflags=-w -o _output/test/ -- \
  ./cmd/svm-controller-manager ./test/integration/manager/plugin
