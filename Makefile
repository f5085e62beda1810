# Everything that is needed besides Go, git and make is built into _output/ by these targets.

OUTPUT  := _output
VERSION ?= v0.1.0-dev+$(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X k8s.io/component-base/version.gitVersion=$(VERSION) -X k8s.io/client-go/pkg/version.gitVersion=$(VERSION)
FOCUS   ?= .
HISTORIES ?= 1000000
# The race detector needs cgo, hence a C compiler.
RACE    ?= $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

.DEFAULT_GOAL := help

##@ Build

.PHONY: build
build: ## Build the project's programs into _output/bin
	mkdir -p $(OUTPUT)/bin
	go build -ldflags "$(LDFLAGS)" -o $(OUTPUT)/bin/ ./cmd/...

.PHONY: controlplane
controlplane: ## Build etcd, kube-apiserver, sample-apiserver and the program that runs them (with=..., e.g. kube-controller-manager, adds more)
	hack/build-controlplane.sh etcd kube-apiserver sample-apiserver $(with)
	go build -o $(OUTPUT)/bin/ ./test/controlplane/cmd/controlplane

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf $(OUTPUT)

##@ Check

.PHONY: test
test: verify unit simulation integration ## Everything CI runs: verify, unit, simulation, integration

.PHONY: verify
verify: ## Check formatting, headers, generated code, module files, docs, lint
	hack/verify.sh

.PHONY: unit
unit: ## Run the tests that need no servers, with the race detector
	go test $(RACE) ./cmd/... ./pkg/... ./hack/... sigs.k8s.io/svm-api/...
	go test $(RACE) -run 'TestHistories$$' ./test/simulation -histories=500

.PHONY: simulation
simulation: ## Play 20,000 histories of a simulated cluster, and make sure that every mutant is found
	go test ./test/simulation

.PHONY: soak
soak: ## Play new histories of a simulated cluster, HISTORIES= of them; tells all kinds of violations that it finds
	go test -timeout 0 -v -run 'TestHistories$$' ./test/simulation -seed=0 -kinds=20 -histories=$(HISTORIES)

.PHONY: integration
integration: build ## Run the tests against real servers; FOCUS= is a regular expression on test names
	hack/build-controlplane.sh etcd kube-apiserver sample-apiserver kube-controller-manager
	go test $(RACE) -p 1 -timeout 20m -run '$(FOCUS)' $$(go list ./test/... | grep -v '/test/simulation$$')

##@ Change

.PHONY: update
update: ## Regenerate what is generated and tidy what can be tidied
	hack/update.sh

##@ Show

.PHONY: demo
demo: build controlplane ## Show a CRD version being migrated away on three API servers, through a kill -9 and a denied object; tears everything down
	go run ./test/demo

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
