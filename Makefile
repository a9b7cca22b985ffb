# The door to everything. Each target does its own set-up; `make help` explains.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 0

BUILD := build
FUZZTIME ?= 20s
# Scenarios of `make test`; kill-worker and lost-answers take minutes: `make scenarios` runs them too.
IN_TEST := ^(stale|ipconfig|guest|address|vmid|unknown|template|memory|pool|missing|bridge|node|advertise|version|ca-|bootstrap|storage|create|raw|ui|cancel)
TOOLS := $(BUILD)/tools
GOTESTSUM := $(TOOLS)/gotestsum
# Pure packages, which the race detector can watch in little time.
RACED := ./internal/codec ./internal/domain ./internal/lease ./internal/plan ./internal/site ./lab/faults ./lab/latency
# Packages without a lab of their own.
UNIT = $(shell go list ./... | grep -v -e /lab/ -e /lab$$)
# Packages that make namespaces or start programs: one at a time. The scenarios
# are a target of their own.
LAB = $(shell go list ./lab/... | grep -v /lab/scenario$$)

##@ See it run

.PHONY: help
help: ## Explain the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*##/ {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build/bin/lab ## Start the lab, create a tenant with two workers, use its kubeconfig, end (SPEED=10)
	@build/bin/lab demo $(if $(SPEED),--speed $(SPEED))

.PHONY: lab
lab: build/bin/lab ## Start the lab and keep it up (SPEED=10); `build/bin/lab exec -- …` works in it
	@build/bin/lab up --fixed-ports $(if $(SPEED),--speed $(SPEED))

.PHONY: lab-down
lab-down: build/bin/lab ## End the lab that `make lab` started
	@build/bin/lab down

# A file that stays, for the lab starts itself again; without cgo, for it runs
# in containers that have no shared libraries.
.PHONY: build/bin/lab
build/bin/lab:
	@echo "building the lab: minutes the first time, seconds afterwards"
	@CGO_ENABLED=0 go build -o $@ ./lab

##@ Prove it

.PHONY: test
test: $(GOTESTSUM) programs ## Formatting, vet, unit tests, fuzzing, scenarios; with a summary (lint, race, lab-tests and replay are targets of their own)
	@rm -f $(BUILD)/test-*.json
	@status=0; $(MAKE) --no-print-directory -k verify unit fuzz scenarios RUN='$(IN_TEST)' || status=1; \
	(cd tools && go run ./summary ../$(BUILD)/test-*.json) || status=1; exit $$status

# Built before any test's time runs.
.PHONY: programs
programs: build/bin/lab
	@CGO_ENABLED=0 go build -o build/bin/lab ./lab
	@build/bin/lab build

.PHONY: unit
unit: $(GOTESTSUM) ## Tests of the packages without a lab of their own
	$(GOTESTSUM) --format pkgname --jsonfile $(BUILD)/test-unit.json -- -count=1 $(UNIT)

.PHONY: lab-tests
lab-tests: $(GOTESTSUM) programs ## The lab's own tests, one package at a time
	$(GOTESTSUM) --format pkgname --jsonfile $(BUILD)/test-lab.json -- -count=1 -p 1 -timeout 30m $(LAB)

.PHONY: fuzz
fuzz: ## Fuzz the loaders of people's files (FUZZTIME=20s each)
	go test ./internal/site -run '^$$' -fuzz FuzzParse -fuzztime $(FUZZTIME)

.PHONY: race
race: $(GOTESTSUM) ## The race detector on pure packages
	CGO_ENABLED=1 $(GOTESTSUM) --format pkgname --jsonfile $(BUILD)/test-race.json -- -count=1 -race $(RACED)

.PHONY: scenarios
scenarios: $(GOTESTSUM) ## What Aether promises, in one lab (LIST=1 lists it, RUN=<pattern> chooses)
	@if [ -n "$(LIST)" ]; then CGO_ENABLED=0 go test ./lab/scenario -count=1 -v -args -list-scenarios | grep -v '^ok'; else \
	CGO_ENABLED=0 $(GOTESTSUM) --format standard-verbose --jsonfile $(BUILD)/test-scenarios.json -- \
	-count=1 -timeout 90m ./lab/scenario -args -scenarios '$(RUN)'; fi

.PHONY: replay
replay: ## Replay the recorded histories against the workflows, and check registered names
	go test ./workflows -count=1 -run 'Replay|Registered|Recorded|Histories' -v

.PHONY: histories
histories: build/bin/lab ## Record in a lab the histories that are missing (SUFFIX=-v2 records new ones beside the old)
	@build/bin/lab histories $(if $(SUFFIX),--suffix $(SUFFIX)) --state $(BUILD)/lab-histories

.PHONY: bench
bench: build/bin/lab ## Measure one join and ten at once at real time, into build/bench.json (OUT=file, SPEED=x)
	@build/bin/lab bench --out $(or $(OUT),$(BUILD)/bench.json) $(if $(SPEED),--speed $(SPEED)) --state $(BUILD)/lab-bench

##@ Keep it in order

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/workflowcheck ## The linters of .golangci.yml and Temporal's workflowcheck
	$(TOOLS)/golangci-lint run ./...
	$(TOOLS)/workflowcheck ./workflows/...

.PHONY: generate
generate: $(TOOLS)/controller-gen ## Make deep copies and CRDs from the Go types
	$(TOOLS)/controller-gen object paths=./api/... crd:generateEmbeddedObjectMeta=false paths=./api/... output:crd:dir=api/crds

.PHONY: verify
verify: $(TOOLS)/controller-gen $(TOOLS)/gofumpt ## Formatting, vet, and that generated files are what the types say
	@test -z "$$($(TOOLS)/gofumpt -l $$(git ls-files '*.go'))" || { echo "not formatted, run: gofumpt -w on"; $(TOOLS)/gofumpt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	@mkdir -p $(BUILD)/verify && $(TOOLS)/controller-gen crd:generateEmbeddedObjectMeta=false paths=./api/... output:crd:dir=$(BUILD)/verify
	@for file in $(BUILD)/verify/*.yaml; do diff -u api/crds/$$(basename $$file) $$file || { echo "run: make generate"; exit 1; }; done

$(TOOLS)/%: tools/go.mod tools/go.sum
	@mkdir -p $(TOOLS)
	cd tools && go build -o ../$(TOOLS)/ $$(go list -f '{{.ImportPath}}' tool | grep '/$*$$')

$(TOOLS)/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	@mkdir -p $(TOOLS)
	cd tools/lint && go build -o ../../$(TOOLS)/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
