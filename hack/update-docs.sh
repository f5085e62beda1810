#!/usr/bin/env bash
# Writes docs/flags.md from the flags of the manager.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go run ./hack/flagdocs > docs/flags.md
