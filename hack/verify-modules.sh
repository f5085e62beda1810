#!/usr/bin/env bash
# verify-modules.sh [FOLDER...] fails where a module file is not tidy: those of the folders, or of all modules but the
# older servers. Nothing but `make upgrade` builds these, and to tidy them fetches the modules of whole releases of
# Kubernetes and of their tests.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folders() {
  if (($#)); then
    printf '%s\n' "$@"
  else
    modules | grep -v '^test/controlplane/binaries/v1\.'
  fi
}

folders "$@" | while read -r module; do
  if ! difference="$(cd "${module}" && GOWORK=off go mod tidy -diff)"; then
    if [[ -z "${difference}" ]]; then
      echo "${module}/go.mod could not be checked" >&2
    else
      echo "${module}/go.mod is not tidy, run 'make update':" >&2
      echo "${difference}" >&2
    fi
    exit 1
  fi
done
