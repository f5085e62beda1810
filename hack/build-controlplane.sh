#!/usr/bin/env bash

# Copyright The svm-controller-manager Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

# Builds the servers that tests run against into _output/bin, from the module test/controlplane/binaries that pins them.
#
#   hack/build-controlplane.sh                                  etcd, kube-apiserver and sample-apiserver
#   hack/build-controlplane.sh kube-controller-manager kubectl  only those named
#   hack/build-controlplane.sh kube-apiserver-1.34              of an older release, pinned in binaries/v1.34;
#                                                               there are 1.34, 1.35 and 1.36
#
# A binary is built when it is missing, or older than this script or the go.mod that pins it. The packages of all that
# have to be built of one module are compiled by one go command, so that no processor waits. Safe to run twice at once.

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

self="${ROOT}/hack/build-controlplane.sh"
pins="${ROOT}/test/controlplane/binaries"
out="${ROOT}/_output/bin"

# module_of names the folder of the module that pins a binary.
module_of() {
  case "$1" in
    kube-apiserver-*) echo "${pins}/v${1#kube-apiserver-}" ;;
    prometheus | promtool) echo "${pins}/prometheus" ;;
    *) echo "${pins}" ;;
  esac
}

package_of() {
  case "$1" in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kube-apiserver | kube-controller-manager | kubeadm | kubectl) echo "k8s.io/kubernetes/cmd/$1" ;;
    kube-apiserver-1.3[456]) echo k8s.io/kubernetes/cmd/kube-apiserver ;;
    sample-apiserver) echo k8s.io/sample-apiserver ;;
    prometheus | promtool) echo "github.com/prometheus/prometheus/cmd/$1" ;;
    *)
      echo "$0: unknown binary \"$1\": it builds etcd, kube-apiserver, kube-controller-manager, kubeadm, kubectl," \
        "sample-apiserver, prometheus, promtool and kube-apiserver-1.34, -1.35, -1.36" >&2
      return 1
      ;;
  esac
}

# link_flags stamps the version of Kubernetes that go.mod names: an unstamped server calls itself v0.0.0, and refuses
# emulation. The symbols stay, although go run would leave them out, because tests find the clock of a server by them.
link_flags() {
  local version major minor package
  printf '%s' '-s=0 -w'
  if ! version="$(go list -m -f '{{.Version}}' k8s.io/kubernetes 2>/dev/null)"; then
    return
  fi
  IFS=. read -r major minor _ <<<"${version#v}"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf ' -X %s=%s' \
      "${package}.gitVersion" "${version}" \
      "${package}.gitMajor" "${major}" \
      "${package}.gitMinor" "${minor}" \
      "${package}.gitTreeState" clean
  done
}

# build MODULE NAME... builds those of the named binaries that are missing or old.
build() {
  local module="$1" name missing=() packages=() new built
  # Prometheus needs no service discovery of clouds, which is most of it.
  local tags=(-tags remove_all_sd)
  shift
  for name in "$@"; do
    if [[ ! -x "${out}/${name}" || "${module}/go.mod" -nt "${out}/${name}" || "${self}" -nt "${out}/${name}" ]]; then
      missing+=("${name}")
      packages+=("$(package_of "${name}")")
    fi
  done
  if ((${#missing[@]} == 0)); then
    return
  fi
  cd "${module}"
  new="$(mktemp -d "${out}/.new.XXXXXX")"
  trap "rm -rf '${new}'" EXIT
  go_with_progress "${missing[*]}" list "${tags[@]}" -export -deps -f '{{""}}' -- "${packages[@]}"
  for name in "${missing[@]}"; do
    # go keeps what it links for go run in its cache, so that the next clone links nothing.
    go run "${tags[@]}" -ldflags "$(link_flags)" -exec "cp -t '${new}'" "$(package_of "${name}")"
    # Renamed into place, because the file of a running server cannot be written. go names a binary after its folder.
    built="$(package_of "${name}")"
    built="${built%/v3}"
    mv "${new}/${built##*/}" "${out}/${name}"
  done
  rmdir "${new}"
}

if [[ $# -eq 0 ]]; then
  set -- etcd kube-apiserver sample-apiserver
fi
for name in "$@"; do
  package_of "${name}" >/dev/null
done

export GOWORK=off CGO_ENABLED=0

mkdir -p "${out}"
exec 9>"${out}/.build-controlplane.lock"
if command -v flock >/dev/null; then
  flock 9
fi

for module in $(for name in "$@"; do module_of "${name}"; done | sort -u); do
  named=()
  for name in "$@"; do
    if [[ "$(module_of "${name}")" == "${module}" ]]; then
      named+=("${name}")
    fi
  done
  build "${module}" "${named[@]}"
done
