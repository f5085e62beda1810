#!/usr/bin/env bash
# Writes docs/flags.md from the flags of the manager, and docs/kubectl-svm.md from the verbs of the kubectl plugin.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0
go run ./hack/flagdocs > docs/flags.md.new
go run ./hack/flagdocs kubectl-svm > docs/kubectl-svm.md.new
mv docs/flags.md.new docs/flags.md
mv docs/kubectl-svm.md.new docs/kubectl-svm.md
