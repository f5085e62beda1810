#!/usr/bin/env bash
# Fails if hack/update-chart.sh would change the templates of the Helm chart.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

COPY=$(mktemp -d)
trap 'rm -rf "${COPY}"' EXIT
hack/update-chart.sh "${COPY}"
if ! diff -Nru --exclude=NOTES.txt build/chart/svm-controller-manager/templates "${COPY}" >&2; then
  echo "the Helm chart is out of date, run 'make update'" >&2
  exit 1
fi
