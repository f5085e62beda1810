#!/usr/bin/env bash
# Builds what a release consists of into _output/release: archives of the programs, the image, the manifests, the
# Helm chart and checksums. The same commit, VERSION, IMAGE and release of Go give the same files. The Makefile sets the
# variables.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tag="${VERSION//+/-}"
out=_output/release
new="${out}.new"
overlays=build/manifests/overlays
chart=build/chart/svm-controller-manager

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

# check fails if the result would lack a part, or could not be built again from the commit that it names.
check() {
  local part missing=()
  for part in LICENSE cmd/svm-controller-manager cmd/kubectl-svm build/manifests/static-pod "${overlays}" "${chart}"; do
    if [[ ! -e "${part}" ]]; then
      missing+=("${part}")
    fi
  done
  if ((${#missing[@]})); then
    fail "a release needs what this tree does not have: ${missing[*]}"
  fi
  if [[ -n "$(git status --porcelain)" ]]; then
    fail "a release is built from a commit, and this tree has changes that are not committed:" "$(git status --short)"
  fi
}

# pack FOLDER NAME... writes an archive of files in a folder.
pack() {
  local folder="$1"
  shift
  tar --sort=name --format=ustar --mtime="@${SOURCE_DATE_EPOCH}" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX --create --directory="${folder}" -- "$@"
}

# archive OS/ARCH PROGRAM FILE... packs a program with its license, and with other files that are beside it.
archive() {
  local platform="${1/\//-}"
  cp LICENSE "_output/programs/${platform}/"
  pack "_output/programs/${platform}" LICENSE "${@:2}" |
    gzip --no-name --best >"${new}/${2%.exe}-${tag}-${platform}.tar.gz"
}

# package_chart packs the Helm chart, with the version of the release and the image in it.
package_chart() {
  local copy="${new}/${chart##*/}"
  cp -r "${chart}" "${copy}"
  sed -i -e "s|^version: .*|version: ${tag#v}|" -e "s|^appVersion: .*|appVersion: ${tag}|" "${copy}/Chart.yaml"
  sed -i -e "s|^  repository: .*|  repository: ${IMAGE}|" "${copy}/values.yaml"
  pack "${new}" "${chart##*/}" | gzip --no-name --best >"${copy}-${tag#v}.tgz"
  rm -r "${copy}"
}

# render FILE FOLDER writes the manifests of a kustomization, with the name and the tag of the image.
render() {
  local kustomization="_output/kustomization"
  rm -rf "${kustomization}"
  mkdir "${kustomization}"
  cat >"${kustomization}/kustomization.yaml" <<END
resources: [../../$2]
images:
- {name: svm-controller-manager, newName: "${IMAGE}", newTag: "${tag}"}
- {name: kubectl-svm, newName: "${PLUGIN_IMAGE}", newTag: "${tag}"}
END
  _output/bin/kubectl kustomize "${kustomization}" >"$1"
  rm -r "${kustomization}"
}

check
hack/build-controlplane.sh kubectl
hack/build-image.sh
rm -rf "${new}"
mkdir -p "${new}"

for platform in linux/amd64 linux/arm64; do
  archive "${platform}" svm-controller-manager
done
for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do
  build_programs "${platform}" kubectl-svm
  install -m 755 cmd/kubectl-svm/kubectl_complete-svm "_output/programs/${platform/\//-}/"
  archive "${platform}" kubectl-svm kubectl_complete-svm
done
build_programs windows/amd64 kubectl-svm
archive windows/amd64 kubectl-svm.exe
pack _output/image blobs index.json oci-layout >"${new}/svm-controller-manager-${tag}-image.tar"
pack _output/image-kubectl-svm blobs index.json oci-layout >"${new}/kubectl-svm-${tag}-image.tar"
for overlay in "${overlays}"/*/; do
  render "${new}/install-$(basename "${overlay}")-${tag}.yaml" "${overlay}"
done
render "${new}/static-pod-${tag}.yaml" build/manifests/static-pod
for part in one-shot crds monitoring; do
  render "${new}/${part}-${tag}.yaml" "build/manifests/${part}"
done
package_chart
(cd "${new}" && sha256sum -- * >SHA256SUMS)

rm -rf "${out}"
mv "${new}" "${out}"
cat "${out}/SHA256SUMS"
