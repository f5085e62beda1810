#!/usr/bin/env bash
# Runs the project's own linter (hack/tools/lint) on both modules of the workspace, on the program that writes images
# and on itself, and its tests. It includes whatever go vet checks.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0
mkdir -p "${TOOLS}"
(
  cd hack/tools/lint
  export GOWORK=off
  # go vet keeps its results for as long as the linter stays the same, byte for byte: so the linter does not depend on
  # the folder or the commit.
  go build -trimpath -buildvcs=false -o "${TOOLS}/lint" .
  go vet -vettool="${TOOLS}/lint" ./...
  go test -vet=off ./...
)
(cd hack/tools/image && GOWORK=off go vet -vettool="${TOOLS}/lint" ./...)
go vet -vettool="${TOOLS}/lint" ./... sigs.k8s.io/svm-api/...
