#!/usr/bin/env bash
# Builds the image of svm-controller-manager for all platforms, as an OCI layout, into _output/image. The Makefile sets
# the variables that it reads: VERSION, LDFLAGS, IMAGE, REVISION, SOURCE_DATE_EPOCH.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

programs=()
for platform in linux/amd64 linux/arm64; do
  build_programs "${platform}" svm-controller-manager
  programs+=("_output/programs/${platform/\//-}/svm-controller-manager")
done
(cd hack/tools/image && GOWORK=off CGO_ENABLED=0 go build -o "${TOOLS}/image" .)
# A tag must not contain the plus sign that a version may contain.
"${TOOLS}/image" -name "${IMAGE}:${VERSION//+/-}" -version "${VERSION}" -revision "${REVISION}" -to _output/image \
  "${programs[@]}"
