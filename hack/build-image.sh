#!/usr/bin/env bash
# Builds the images of svm-controller-manager and of kubectl-svm for all platforms, as OCI layouts, into _output/image
# and _output/image-kubectl-svm. The Makefile sets the variables that it reads: VERSION, LDFLAGS, IMAGE, PLUGIN_IMAGE,
# REVISION, SOURCE_DATE_EPOCH.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

platforms=(linux/amd64 linux/arm64)
for platform in "${platforms[@]}"; do
  build_programs "${platform}" svm-controller-manager kubectl-svm
done
(cd hack/tools/image && GOWORK=off CGO_ENABLED=0 go build -o "${TOOLS}/image" .)

# build_image PROGRAM NAME FOLDER builds one image. A tag must not contain the plus sign that a version may contain.
build_image() {
  local programs=() platform
  for platform in "${platforms[@]}"; do
    programs+=("_output/programs/${platform/\//-}/$1")
  done
  "${TOOLS}/image" -name "$2:${VERSION//+/-}" -version "${VERSION}" -revision "${REVISION}" -to "$3" "${programs[@]}"
}

build_image svm-controller-manager "${IMAGE}" _output/image
build_image kubectl-svm "${PLUGIN_IMAGE}" _output/image-kubectl-svm
