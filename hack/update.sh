#!/usr/bin/env bash
# Runs every hack/update-*.sh.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for step in codegen chart releases headers format modules docs; do
  echo "update ${step}"
  "hack/update-${step}.sh"
done
