#!/usr/bin/env bash
# Fails if docs/flags.md or docs/kubectl-svm.md is not what the commands say, if links between documents, the reasons in
# docs/operations.md or the codes in docs/preflight.md are wrong, or if lines of documents or scripts are too long.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# As everything but the race detector is built, so that packages are compiled once.
export CGO_ENABLED=0

for document in flags kubectl-svm; do
  if ! go run ./hack/flagdocs "${document}" | diff -u "docs/${document}.md" - >&2; then
    echo "docs/${document}.md is out of date, run 'make update'" >&2
    exit 1
  fi
done

existing '*.md' | xargs go run ./hack/doccheck

# Rows of tables and lines with a URL cannot be broken. docs/flags.md is generated. The linter limits
# lines of Go.
long="$(existing '*.md' '*.sh' ':!:docs/flags.md' |
  LC_ALL=C.UTF-8 xargs grep -HnE '^.{121,}' | grep -vE '^[^:]*:[0-9]+: *\||https?:' || true)"
if [[ -n "${long}" ]]; then
  printf 'lines with more than 120 characters:\n%s\n' "${long}" >&2
  exit 1
fi
