#!/usr/bin/env bash
# Formats every Go file.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

sources | xargs gofmt -s -w
