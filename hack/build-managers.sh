#!/usr/bin/env bash
# Builds the managers, and the kubectl plugin, that integration tests run into _output/test, and svm-controller-manager
# once more into _output/test/plain. Arguments, such as -race, are those of go build for the managers of _output/test.
# The plugin is built without them, because tests start it hundreds of times. Its packages that have several goroutines
# are raced in unit tests and in test/integration/terminal.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export CGO_ENABLED=0
mkdir -p _output/test/plain
managers=(./cmd/svm-controller-manager ./test/integration/manager/plugin)
go_with_progress "the plugin and the plain manager of the tests" build -ldflags=-w -o _output/test/plain/ -- \
  ./cmd/kubectl-svm ./cmd/svm-controller-manager
cp -f _output/test/plain/kubectl-svm _output/test/
if [[ " $* " == *" -race "* ]]; then
  export CGO_ENABLED=1
fi
go_with_progress "the managers of the tests" build "$@" -ldflags=-w -o _output/test/ -- "${managers[@]}"
