#!/usr/bin/env bash
# Builds into _output/bin: the conformance suite as a test binary, the command of Ginkgo that runs it in parallel
# processes, and the program that runs both on a control plane of its own.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0
mkdir -p _output/bin
go build -o _output/bin/ginkgo github.com/onsi/ginkgo/v2/ginkgo
go test -c -vet=off -ldflags=-w -o _output/bin/e2e.test ./test/e2e
go build -ldflags=-w -o _output/bin/e2e-local ./test/e2e/local
