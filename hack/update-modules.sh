#!/usr/bin/env bash
# Tidies every module.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

modules | while read -r module; do
  (cd "${module}" && GOWORK=off go mod tidy)
done
