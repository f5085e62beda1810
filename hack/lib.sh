# Sourced by the scripts beside it: strict mode, the repository's root, the lists of modules and sources, builds that
# report, builds for a release.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT="${PWD}"
TOOLS="${ROOT}/_output/tools"

# existing lists the files that match, committed or not. Git also knows of files that were deleted since.
existing() {
  git ls-files --cached --others --exclude-standard -- "$@" |
    while IFS= read -r file; do if [[ -e "${file}" ]]; then echo "${file}"; fi; done
}

# modules lists the folder of every Go module.
modules() {
  existing 'go.mod' '*/go.mod' | xargs -n1 dirname
}

# sources lists every Go file that a person wrote.
sources() {
  existing '*.go' ':!:*zz_generated*' ':!:staging/*/client/*' ':!:*/testdata/*'
}

# go_with_progress WHAT COMMAND FLAG... -- PACKAGE... is a command of go that compiles, which reports every ten seconds
# how far it is: a cold build of kube-apiserver takes minutes, in which go says nothing.
go_with_progress() {
  local what="$1" command="$2" flags=() packages
  shift 2
  while [[ "$1" != -- ]]; do
    flags+=("$1")
    shift
  done
  shift
  # Without a download, because that would take long and say nothing. The command below says what is wrong.
  packages="$(GOPROXY=off go list -deps "$@" 2>/dev/null | wc -l)" || packages='?'
  go "${command}" -v "${flags[@]}" "$@" 2>&1 | report_progress "building ${what}" "${packages}"
}

# build_programs OS/ARCH PROGRAM... builds programs of cmd/ as they are released, into _output/programs/OS-ARCH. They
# depend on the sources, the release of Go and LDFLAGS, but not on the folder, on Git or on the user's settings.
build_programs() {
  local platform="$1" setting
  shift
  (
    # GOENV=off leaves out what `go env -w` has set. These settings are kept: they say which release of Go builds, where
    # modules are fetched from, and where caches are.
    for setting in GOTOOLCHAIN GOPROXY GONOPROXY GOPRIVATE GOSUMDB GONOSUMDB GOINSECURE GOAUTH GOVCS \
      GOPATH GOMODCACHE GOCACHE GOTMPDIR; do
      export "${setting}=$(go env "${setting}")"
    done
    export GOENV=off GOOS="${platform%/*}" GOARCH="${platform#*/}" CGO_ENABLED=0
    unset GOFLAGS GOEXPERIMENT GOFIPS140 GOAMD64 GOARM64 GOWORK
    go_with_progress "$* for ${platform}" build -trimpath -buildvcs=false -ldflags "${LDFLAGS} -s -w" \
      -o "_output/programs/${GOOS}-${GOARCH}/" -- "${@/#/./cmd/}"
  )
}

# report_progress counts the packages that go build -v names, and passes on everything else that it says.
report_progress() {
  local what="$1" packages="$2" compiled=0 fetched=0 told=0 line status
  echo "${what}" >&2
  SECONDS=0
  while true; do
    status=0
    IFS= read -r -t 1 line || status=$?
    if ((status == 0)); then
      case "${line}" in
        "go: downloading "*) fetched=$((fetched + 1)) ;;
        *[[:space:]]*) echo "${line}" >&2 ;;
        *) compiled=$((compiled + 1)) ;;
      esac
    elif ((status <= 128)); then
      break
    fi
    if ((SECONDS >= told + 10)); then
      told="${SECONDS}"
      echo "${what}: ${compiled} packages of at most ${packages}, ${fetched} modules fetched, ${SECONDS} s" >&2
    fi
  done
  echo "${what}: took ${SECONDS} s, ${compiled} of ${packages} packages were compiled" >&2
}
