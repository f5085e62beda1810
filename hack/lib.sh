# Sourced by the scripts beside it: strict mode, the repository's root, the list of modules.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT="${PWD}"
TOOLS="${ROOT}/_output/tools"

# modules lists the folder of every Go module.
modules() {
  git ls-files --cached --others --exclude-standard -- 'go.mod' '*/go.mod' | xargs -n1 dirname
}

# sources lists every Go file that a person wrote.
sources() {
  git ls-files --cached --others --exclude-standard -- '*.go' ':!:*zz_generated*' ':!:staging/*/client/*' ':!:*/testdata/*' |
    while read -r file; do if [[ -e "${file}" ]]; then echo "${file}"; fi; done
}
