# Everything that is needed besides Go, git and make is built into _output/ by these targets.

OUTPUT  := _output
VERSION ?= v0.1.0-dev+$(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X k8s.io/component-base/version.gitVersion=$(VERSION) -X k8s.io/client-go/pkg/version.gitVersion=$(VERSION)
# What an image and a release are stamped with, and the name of the image in the manifests of a release.
REVISION          ?= $(shell git describe --always --dirty --abbrev=40 --exclude='*')
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
IMAGE             ?= svm-controller-manager
PLUGIN_IMAGE      ?= $(if $(filter %/svm-controller-manager,$(IMAGE)),$(IMAGE:svm-controller-manager=kubectl-svm),kubectl-svm)
STAMPED            = VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' IMAGE='$(IMAGE)' PLUGIN_IMAGE='$(PLUGIN_IMAGE)' \
	REVISION='$(REVISION)' SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)'
FOCUS   ?= .
HISTORIES ?= 1000000
# What make bench passes on: any flags of test/bench, and where kube-storage-version-migrator is.
BENCH   ?=
KSVM    ?=
# How long make chaos lasts, and what its faults depend on.
DURATION ?= 1h
SEED    ?= $(shell date +%s)
# Everything is built without cgo, as the servers are, so that packages are compiled once; but the race detector needs
# cgo, hence a C compiler.
RACE    ?= $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
# Tests against real servers that run without the race detector, the longest first, so that they do not end alone. With
# it, they take a quarter longer. All controllers run with it in the tests of the manager, of chaos and of the
# conformance suite, the observer in its unit tests, and the control plane in the tests of the manager.
PLAIN_INTEGRATION := $(addprefix ./test/integration/,svmtrigger svmigrator install observer storageversiongc plugin) \
	./test/controlplane ./test/controlplane/cmd/controlplane ./test/integration/api
# One control plane has one situation after the other, and on a busy machine Prometheus misses what it should see, so
# that the test waits for it again.
MONITORING        := ./test/integration/monitoring
# All others. Tests of upgrades, of chaos and of the conformance suite have targets of their own.
WITH_TESTS         = go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}'
ELSEWHERE         := ./test/simulation ./test/chaos ./test/upgrade ./test/e2e
RACED_INTEGRATION  = $(filter-out $(PLAIN) $(shell go list $(ELSEWHERE) $(PLAIN_INTEGRATION) $(MONITORING)), \
	$(shell $(WITH_TESTS) ./test/integration/manager ./test/...))
# What is tested without servers: in packages of one goroutine the race detector has nothing to find.
PLAIN              = $(shell $(WITH_TESTS) ./hack/... ./test/bench ./test/scale/synthetic ./test/chaos/failpoint \
	./test/chaos/validate ./test/e2e/specs ./test/e2e/suite ./test/integration/framework \
	./cmd/kubectl-svm/app \
	$(addprefix ./cmd/kubectl-svm/app/,assess denied history migrate plan preflight report status steer verify) \
	./cmd/svm-controller-manager/app/options ./pkg/controller/svmigrator/sweep ./pkg/storageversion \
	$(addprefix ./pkg/,definition features install releases storageversion/documents stored) sigs.k8s.io/svm-api/...)
# What would take long with the race detector, and has nothing for it to find.
MEMORY            := -run TestManyLargeDefinitionsFit ./pkg/storageversion/observer
# The first one takes longest.
RACED              = $(filter-out $(PLAIN),$(shell $(WITH_TESTS) ./pkg/storageversion/observer ./cmd/... ./pkg/...))

TEST := go test -vet=off
# A time limit is to end a package that hangs, and no package that runs on a busy machine.
UNIT := $(TEST) -timeout 30m
# Real servers never behave twice in the same way, so a result from Go's cache would say nothing. Parallel tests wait
# most of the time: more of them than there are processors run at once.
INTEGRATION := $(TEST) -count=1 -timeout 2h -parallel 4 -run '$(FOCUS)'

.DEFAULT_GOAL := help

##@ Build

.PHONY: build
build: ## Build the project's programs into _output/bin
	mkdir -p $(OUTPUT)/bin
	CGO_ENABLED=0 go build -ldflags "$(LDFLAGS)" -o $(OUTPUT)/bin/ ./cmd/...
	install -m 755 cmd/kubectl-svm/kubectl_complete-svm $(OUTPUT)/bin/

.PHONY: controlplane
controlplane: ## Build etcd, API servers and the program that runs them (with=kube-controller-manager adds that)
	hack/build-controlplane.sh etcd kube-apiserver sample-apiserver $(with)
	CGO_ENABLED=0 go build -o $(OUTPUT)/bin/ ./test/controlplane/cmd/controlplane

.PHONY: image
image: ## Build the image of svm-controller-manager for linux/amd64 and linux/arm64 into _output/image
	@$(STAMPED) hack/build-image.sh

.PHONY: release
release: ## Build everything that a release consists of into _output/release, from a commit and VERSION=
	@$(STAMPED) hack/build-release.sh

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf $(OUTPUT)

##@ Check

.PHONY: test
test: ## Everything CI runs: verify, unit, simulation, integration; tells at the end how long each took
	@hack/test.sh

.PHONY: verify
verify: ## Check formatting, headers, generated code, module files, docs, lint
	@hack/step.sh verify $(NICE) hack/verify.sh

.PHONY: unit
unit: unit-raced ## Run the tests that need no servers, with the race detector where there are several goroutines
	@CGO_ENABLED=0 hack/step.sh "unit, plain" $(UNIT) $(PLAIN)
	@CGO_ENABLED=0 hack/step.sh "memory, plain" $(UNIT) $(MEMORY)

.PHONY: unit-raced
unit-raced:
	@hack/step.sh "unit, raced" $(UNIT) $(RACE) -parallel 4 $(RACED)
	@hack/step.sh "simulation, raced" $(UNIT) $(RACE) -run 'TestHistories$$' ./test/simulation -histories=10

.PHONY: simulation
simulation: ## Play 20,000 histories of a simulated cluster, and make sure that every mutant is found
	CGO_ENABLED=0 go test -vet=off -timeout 30m -v ./test/simulation -histories=20000

.PHONY: unit-plain-and-simulation
unit-plain-and-simulation:
	@CGO_ENABLED=0 hack/step.sh "unit, simulation, plain" $(UNIT) $(PLAIN) ./test/simulation
	@CGO_ENABLED=0 hack/step.sh "memory, plain" $(UNIT) $(MEMORY)

.PHONY: soak
soak: ## Play new histories of a simulated cluster, HISTORIES= of them; tells all kinds of violations that it finds
	CGO_ENABLED=0 go test -timeout 0 -v -run 'TestHistories$$' ./test/simulation -seed=0 -kinds=20 -histories=$(HISTORIES)

.PHONY: integration
integration: test-binaries ## Run the tests against real servers; FOCUS= is a regular expression on test names
	@$(MAKE) --no-print-directory -j3 integration-monitoring integration-plain integration-raced

.PHONY: integration-monitoring
integration-monitoring: # Only root may be nicer to it than to others.
	@SVM_TEST_BINARIES='$(CURDIR)/$(OUTPUT)/test/plain' CGO_ENABLED=0 hack/step.sh "integration, monitoring" \
		nice -n -5 $(INTEGRATION) $(MONITORING)

.PHONY: integration-plain
integration-plain:
	@SVM_TEST_BINARIES='$(CURDIR)/$(OUTPUT)/test/plain' CGO_ENABLED=0 hack/step.sh "integration, plain" \
		$(INTEGRATION) -p 6 $(PLAIN_INTEGRATION)

.PHONY: integration-raced
integration-raced:
	@SVM_TEST_BINARIES='$(CURDIR)/$(OUTPUT)/test' hack/step.sh "integration, raced" \
		$(INTEGRATION) $(RACE) -p 1 $(RACED_INTEGRATION)

# A kubeconfig of the environment is not meant: only KUBECONFIG=… on the command line of make chooses a cluster.
CLUSTER := $(if $(filter command line,$(origin KUBECONFIG)),$(KUBECONFIG))
# Who migrates: svm, in-tree or kube-storage-version-migrator; the last one needs KSVM=, a folder with its programs.
IMPLEMENTATION ?= svm
E2E_LABELS     ?=
E2E_FLAGS      ?=
E2E_REPORTS    ?= $(OUTPUT)/reports/$(IMPLEMENTATION)

.PHONY: e2e
e2e: e2e-binaries $(if $(CLUSTER),,test-binaries) ## Run the conformance suite; KUBECONFIG= is a cluster of yours
	@hack/step.sh e2e hack/e2e.sh '$(IMPLEMENTATION)' '$(E2E_REPORTS)' '$(E2E_LABELS)' '$(CLUSTER)' $(E2E_FLAGS)

# hack/test.sh has built what these two need.
.PHONY: e2e-quick
e2e-quick:
	@hack/step.sh e2e hack/e2e.sh svm $(OUTPUT)/reports/svm '(REWRITE || KNOWLEDGE || SECURITY) && !Slow' '' \
		--procs=4 --patience=10m --objects=150

.PHONY: e2e-binaries
e2e-binaries:
	@hack/step.sh "build of the suite" hack/build-e2e.sh

.PHONY: conformance
conformance: e2e-binaries test-binaries ## Write test/e2e/reports; KSVM= has kube-storage-version-migrator
	hack/conformance.sh '$(KSVM)'

.PHONY: chaos
chaos: ## Break real clusters for DURATION=, as SEED= says, and judge etcd; the report goes into _output/chaos
	hack/build-controlplane.sh etcd kube-apiserver
	hack/build-managers.sh
	CGO_ENABLED=0 go test -count=1 -vet=off -timeout 0 -v -run 'TestChaos$$' ./test/chaos \
		-duration=$(DURATION) -seed=$(SEED) -report='$(CURDIR)/$(OUTPUT)/chaos'

.PHONY: chaos-mutants
chaos-mutants: ## Break clusters with managers that have mistakes, each of which must be seen
	hack/build-controlplane.sh etcd kube-apiserver
	CGO_ENABLED=0 go test -count=1 -vet=off -timeout 0 -v ./test/chaos -mutants

.PHONY: chaos-in-short
chaos-in-short:
	@SVM_TEST_BINARIES='$(CURDIR)/$(OUTPUT)/test' CGO_ENABLED=0 hack/step.sh chaos \
		$(TEST) -count=1 -timeout 30m ./test/chaos

.PHONY: upgrade
upgrade: ## Upgrade servers of Kubernetes 1.34 to 1.37 and roll them back, which it builds first; FOCUS= as above
	hack/verify-modules.sh test/controlplane/binaries/v1.*
	hack/build-controlplane.sh etcd kube-apiserver kube-apiserver-1.34 kube-apiserver-1.35 kube-apiserver-1.36 \
		kubectl kube-controller-manager
	hack/build-managers.sh
	SVM_TEST_BINARIES='$(CURDIR)/$(OUTPUT)/test' CGO_ENABLED=0 $(INTEGRATION) -timeout 90m -v ./test/upgrade

.PHONY: image-test
image-test: ## Build the image twice, compare, and look into it (compiles for arm64, some minutes at first)
	cd hack/tools/image && GOWORK=off CGO_ENABLED=0 go test -count=1 -vet=off -v .

.PHONY: test-binaries
test-binaries: ## Build the servers and the managers that tests run
	@hack/step.sh "build of servers" \
		hack/build-controlplane.sh etcd kube-apiserver sample-apiserver kube-controller-manager kubectl kubeadm \
		prometheus promtool
	@hack/step.sh "build of managers" hack/build-managers.sh $(RACE)

##@ Measure

.PHONY: bench
bench: build ## Compare the manager with other migrators into docs/benchmarks.md; KSVM=folder QUICK=1 BENCH=flags
	hack/build-controlplane.sh etcd kube-apiserver kube-controller-manager
	CGO_ENABLED=0 go run ./test/bench $(if $(QUICK),-quick,-document=docs/benchmarks.md) $(if $(KSVM),-ksvm=$(KSVM)) \
		$(BENCH)

.PHONY: scale
scale: build ## Measure a cluster of 2,000 definitions and 100,000 objects, and the migrator with 1,000,000 objects
	hack/build-controlplane.sh etcd kube-apiserver kubectl kube-controller-manager
	CGO_ENABLED=0 go build -o $(OUTPUT)/test/ ./test/scale
	$(OUTPUT)/test/scale -synthetic=1000000
	$(OUTPUT)/test/scale

##@ Change

.PHONY: update
update: ## Regenerate what is generated and tidy what can be tidied
	hack/update.sh

##@ Show

.PHONY: demo
demo: build ## Show a migration on three API servers, a mutation stopped, an upgrade; KEEP=1 leaves it running
	hack/build-controlplane.sh etcd kube-apiserver kubectl
	CGO_ENABLED=0 go run ./test/demo

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
