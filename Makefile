# Needs Python 3.11+ and make; everything else is brought into .venv and the user's cache.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
# The variable silences an advertisement of the theme.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# core (default), ci or all: docs/testing.md
CLONOS_TESTS ?= core
# CI has 90 minutes: a suite that hangs has to end, and to print what failed, before that.
LIMITS := $(if $(filter ci,$(CLONOS_TESTS)),--session-timeout 2700 --maxfail 10)
PYTEST := $(BIN)/python -m pytest --durations=25 --durations-min=8 $(LIMITS)
SELECTION := --tests $(CLONOS_TESTS) $(if $(filter ci,$(CLONOS_TESTS)),--turn $(or $(shell git rev-parse --short=8 HEAD),0))
IN_CONTAINERS = $(PYTEST) -v --kafka container
SUMMARY := build/tests.txt
# Busy and idle seconds of all cores so far. `times` would miss the processes that outlive their parents, as drivers do.
CPU := $(BIN)/python -c 'import psutil; now = psutil.cpu_times(); print(now.user + now.nice + now.system, now.idle + getattr(now, "iowait", 0))'
# What `make test` runs, four at a time: tests wait for brokers, restarts and leases for much of their time. A suite that
# fails keeps no other from running. Suites that need no start-up caches begin beside their preparation; the others follow,
# those first that take long.
SUITES := .venv/.cached lint unit component-store component-rest chaos-second integration-first integration-second chaos-first component-api browser containers-slice contracts
# Alone: the platform's fourteen containers leave nothing to other suites.
LAST := containers-platform
LABELLED = $(if $(LABEL), 2>&1 | sed --unbuffered 's/^/$@: /')
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo $(BIN)/docker-compose) --file docker/compose.yaml
NAME ?= orders
KILLS ?= $(if $(filter live,$(NAME)),2,3)

# Some machines set this. Every Python process would then compile what it imports: two seconds of CPU time for a driver.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo example test begin-summary unit component component-api component-store component-rest contracts integration integration-first integration-second chaos chaos-first chaos-second browser screenshots chaos-full containers containers-slice containers-platform containers-full cluster-full image-kafka \
	images compose compose-down \
	lint docs wheel format bench lock clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/.installed: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "There is no program $(PYTHON). Name a Python 3.11 or newer: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("$(PYTHON) is Python %d.%d, and Clonos needs 3.11 or newer: make setup PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "Installing into .venv (once, about a minute, 1.8 GB of disk; with jars and caches 2 to 3 minutes)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

.venv/.prepared: .venv/.installed platform/clonos/embedded/ivy.xml $(wildcard */clonos*/*/java/*.java */clonos*/*/scala/*.scala)
	@echo "Fetching jars (once)"
	@$(BIN)/python -m clonos.embedded.jars
	@$(BIN)/python -m clonos.spark.classes
	@touch $@

.venv/.cached: .venv/.prepared
	@echo "Preparing start-up caches (once, two minutes on two cores)"
	@$(BIN)/python -m clonos.spark.aot
	@touch $@

setup: .venv/.cached ## Environment, jars and start-up caches

demo: setup ## Kill a job on real Kafka: a cold restart, a takeover by a standby; it publishes exactly once
	@$(BIN)/clonos demo

example: setup ## One example, killed and checked: NAME=orders (or enrich, live, wordcount), KILLS=2, MASTER=cluster
	@$(BIN)/clonos demo --example $(NAME) --kills $(KILLS) --no-plain $(if $(filter cluster,$(MASTER)),--spark-workers 2)

test: export CLONOS_TEST_SUMMARY := $(CURDIR)/$(SUMMARY)
test: .venv/.prepared begin-summary ## Lint and the core tests; CLONOS_TESTS=all: all of them
	@ended=0; \
	for suites in "$(SUITES)" "$(LAST)"; do \
		began=$$SECONDS; \
		$(MAKE) --no-print-directory --keep-going --jobs 4 LABEL=yes $$suites || ended=$$?; \
		echo "$$suites: $$((SECONDS - began)) s" >>$(SUMMARY); \
	done; \
	$(CPU) | paste -d ' ' build/cpu.txt - | awk '{ printf "CPU time of this machine: %.1f min busy, %.1f min idle\n", ($$3 - $$1) / 60, ($$4 - $$2) / 60 }' >>$(SUMMARY); \
	printf '\nWhat ran:\n'; sed 's/^/  /' $(SUMMARY); \
	$(if $(filter-out all,$(CLONOS_TESTS)),echo "CLONOS_TESTS=all make test runs the tests that were left out.";) exit $$ended

begin-summary:
	@mkdir -p build
	@: >$(SUMMARY)
	@$(CPU) >build/cpu.txt

unit: .venv/.prepared ## Tests without Kafka and Spark (1 minute)
	$(PYTEST) tests/unit -q $(SELECTION)$(LABELLED)

component: .venv/.prepared ## Control plane, agents, command line, security; on SQLite and PostgreSQL (8 minutes)
	@$(MAKE) --no-print-directory --keep-going --jobs 3 LABEL=yes component-api component-store component-rest

component-api: .venv/.prepared
	$(PYTEST) tests/component/api -q $(SELECTION)$(LABELLED)

component-store: .venv/.prepared
	$(PYTEST) $(addprefix tests/component/,store reconcile security) -q $(SELECTION)$(LABELLED)

component-rest: .venv/.prepared
	$(PYTEST) $(addprefix tests/component/,agent cli dashboard) -q $(SELECTION)$(LABELLED)

contracts: setup ## Claims on a real broker, crashed at every step (1 minute)
	$(PYTEST) tests/integration/contracts -v $(SELECTION)$(LABELLED)

integration: setup ## Jobs on real Kafka and Spark, without crashes of the driver (10 minutes)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 LABEL=yes integration-first integration-second

integration-first: setup
	$(PYTEST) tests/integration/jobs/test_[a-o]*.py -v $(SELECTION)$(LABELLED)

integration-second: setup
	$(PYTEST) tests/integration/jobs/test_[p-z]*.py -v $(SELECTION)$(LABELLED)

chaos: setup ## Real drivers, killed and stopped at named points: a selection (12 minutes)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 LABEL=yes chaos-first chaos-second

chaos-first: setup
	$(PYTEST) tests/chaos/test_[a-o]*.py -v --capture=no $(SELECTION)$(LABELLED)

chaos-second: setup
	$(PYTEST) tests/chaos/test_[p-z]*.py -v --capture=no $(SELECTION)$(LABELLED)

browser: setup ## The dashboard in Chromium (apt-get install -y chromium), over real jobs that are killed (3 minutes)
	$(PYTEST) tests/component/browser -v --capture=no $(SELECTION)$(LABELLED)

screenshots: setup ## Pictures of the dashboard in docs/img, from a real run of two examples that are killed (needs Chromium)
	PYTHONPATH=tests $(BIN)/python tests/component/browser/screenshots.py docs/img

chaos-full: setup ## The same at every point, twenty races, fifty kills (about an hour)
	$(PYTEST) tests/chaos -v --capture=no --every-point
	$(BIN)/clonos demo --example all --kills 50 --no-plain --json

cluster-full: setup ## Spark clusters: every failure, examples, the platform with workers, YARN, HDFS, S3 (40 minutes)
	@failed=0; \
	$(PYTEST) tests/chaos/test_cluster_failures.py tests/chaos/test_yarn_failures.py tests/chaos/test_cluster_platform.py tests/chaos/test_remote_checkpoints.py tests/integration/jobs/test_program_on_executors.py \
		tests/integration/jobs/test_cluster_jobs.py tests/integration/jobs/test_epoch_guard.py tests/integration/jobs/test_kubernetes_pods.py tests/integration/jobs/test_yarn_executors.py -v --capture=no || failed=1; \
	$(PYTEST) tests/chaos/test_examples.py tests/chaos/test_readme.py -k cluster -v --capture=no || failed=1; \
	exit $$failed

containers: setup ## Contracts, exactly-once jobs, the platform by compose; in containers, needs a Docker engine
	$(IN_CONTAINERS) tests/integration/jobs/test_exactly_once.py tests/integration/containers tests/integration/contracts

containers-slice: IN_SLICE = tests/integration/jobs/test_exactly_once.py $(if $(filter all,$(CLONOS_TESTS)),tests/integration/contracts)
containers-platform: IN_SLICE = tests/integration/containers

# In most turns of CI no test of the platform in containers runs: pytest exits with 5.
# No $(MAKE) here: an engine that this starts would inherit the jobserver of `make test`, which would then wait for it.
containers-slice containers-platform: setup
	@{ if { docker/engine $(or $(CLONOS_TEST_ENGINE),status) && docker/base-image; } 2>build/$@.txt; then \
		$(IN_CONTAINERS) $(IN_SLICE) $(SELECTION) || { ended=$$?; [ $$ended = 5 ] || exit $$ended; }; \
	else \
		echo "$@: not run, because $$(tail -n 1 build/$@.txt)" | tee -a $(SUMMARY); \
	fi; }$(LABELLED)

containers-full: setup ## All contracts and integration tests in containers, and broker failures
	$(PYTEST) tests/integration tests/chaos/test_broker_failures.py -v --kafka container

image-kafka: .venv/.prepared ## Build the image of Kafka that the tests run, unless it is there; print its name
	@$(BIN)/python docker/kafka/build.py

images: .venv/.installed ## Build the images of docker/compose.yaml that are not there; their names go to build/compose.env
	@mkdir -p build && $(BIN)/python docker/images.py >build/compose.env.new && mv build/compose.env.new build/compose.env

compose: images ## Start the platform in containers: API on https://127.0.0.1:8484; see docker/README.md
	@$(COMPOSE) --env-file build/compose.env up --detach --no-build --wait

compose-down: .venv/.installed ## Remove the platform in containers, with its data
	@$(COMPOSE) --profile '*' down --volumes

lint: .venv/.installed ## ruff, mypy, import-linter, codespell with docs/words.txt, links of the documentation
	$(BIN)/ruff check .$(LABELLED)
	$(BIN)/ruff format --check .$(LABELLED)
	$(BIN)/codespell .$(LABELLED)
	$(BIN)/mypy$(LABELLED)
	$(BIN)/lint-imports$(LABELLED)
	$(MKDOCS) build$(LABELLED)

docs: .venv/.installed ## Build the documentation site, build/docs/index.html; the control plane serves it under /docs
	$(MKDOCS) build

wheel: docs ## Build a wheel with the documentation site, below build/wheel
	$(BIN)/uv build --quiet --wheel --out-dir build/wheel .

format: .venv/.installed ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## Benchmarks (one JSON object each)
	$(BIN)/python -m bench

lock: .venv/.installed ## Resolve the dependencies again
	$(BIN)/uv pip compile pyproject.toml --extra formats --extra api --extra lineage --extra traces --group dev --universal --python-version 3.11 --generate-hashes \
		--no-header --no-emit-index-url --no-annotate --upgrade --quiet --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra formats --extra api --extra lineage --extra traces --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --no-annotate --quiet --constraint requirements.lock --output-file docker/requirements.lock

clean: ## Remove the environment and caches of the tools
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
