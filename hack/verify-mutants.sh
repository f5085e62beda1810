#!/usr/bin/env bash
# Fails if a mistake of test/upgrade/mutants cannot be made in the sources any more.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for patch in test/upgrade/mutants/*.patch; do
  git apply --check "${patch}"
done
