#!/usr/bin/env bash
# Runs vet and the project's own linter (hack/tools/lint) on both modules of the workspace, and the linter's own tests.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mkdir -p "${TOOLS}"
(cd hack/tools/lint && GOWORK=off go build -o "${TOOLS}/lint" . && GOWORK=off go test ./...)
patterns=(./... sigs.k8s.io/svm-api/...)
go vet "${patterns[@]}"
# -size.enforce also limits the length of lines, functions and files.
go vet -vettool="${TOOLS}/lint" "${patterns[@]}"
