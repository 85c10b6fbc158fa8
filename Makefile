# Needs Python 3.11+ and make; everything else is brought into .venv and the user's cache.
PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --durations=25 --durations-min=8
CORE := $(if $(filter all ci,$(CLONOS_TESTS)),,--core) $(if $(filter ci,$(CLONOS_TESTS)),--no-stories)
SUMMARY := build/tests.txt
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo $(BIN)/docker-compose) --file docker/compose.yaml
NAME ?= orders
KILLS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo example test begin-summary unit service service-api service-rest contracts integration chaos browser screenshots chaos-full containers containers-full image-kafka \
	images compose compose-down \
	lint format bench lock clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Clonos needs Python 3.11 or newer; set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Installing into .venv (once, about a minute)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

.venv/.prepared: .venv/.installed platform/clonos/embedded/ivy.xml platform/clonos/engine/localfs/clonos-localfs.jar
	@echo "Fetching jars (once)"
	@$(BIN)/python -m clonos.embedded.jars
	@echo "Preparing start-up caches (once, about a minute)"
	@$(BIN)/python -m clonos.engine.aot
	@touch $@

setup: .venv/.prepared ## Environment, jars and start-up caches

demo: setup ## Kill a job on real Kafka: a cold restart, a takeover by a standby; watch it publish exactly once
	@$(BIN)/clonos demo

example: setup ## One example, killed and checked: NAME=orders (or enrich, wordcount), KILLS=3
	@$(BIN)/clonos demo --example $(NAME) --kills $(KILLS) --no-plain

test: export CLONOS_TEST_SUMMARY := $(CURDIR)/$(SUMMARY)
test: begin-summary lint unit service contracts integration chaos browser ## Lint and the core tests (a quarter of an hour); CLONOS_TESTS=all: all of them
	@if { docker/engine $(or $(CLONOS_TEST_ENGINE),status) && docker/base-image; } 2>build/engine.txt; then \
		$(MAKE) --no-print-directory containers; \
	else \
		echo "Kafka in containers: not run, because $$(tail -n 1 build/engine.txt)" >>$(SUMMARY); \
	fi
	@printf '\nWhat ran:\n  lint\n'; sed 's/^/  /' $(SUMMARY)
	@$(if $(strip $(CORE)),echo "CLONOS_TESTS=all make test runs what was left out.")

begin-summary:
	@mkdir -p build
	@: >$(SUMMARY)

unit: setup ## Tests without Kafka and Spark
	$(PYTEST) tests/unit -q

service: setup ## Control plane, agents, command line, security; on SQLite and PostgreSQL (apt-get install -y postgresql)
	@$(MAKE) --no-print-directory --jobs 2 service-api service-rest

# Each is about one core's work, with its databases.
service-api:
	@mkdir -p build
	@trap : INT TERM; $(PYTEST) tests/api -q $(CORE) >build/service-api.txt 2>&1; ended=$$?; cat build/service-api.txt; exit $$ended

service-rest:
	$(PYTEST) tests/store tests/reconcile tests/security tests/agent tests/cli tests/dashboard -q $(CORE)

contracts: setup ## The commit protocol on a real broker, crashed at every step
	$(PYTEST) tests/contracts -v $(CORE)

integration: setup ## Jobs on real Kafka and Spark, without crashes of the driver
	$(PYTEST) tests/integration -v $(CORE)

chaos: setup ## Real drivers, killed and stopped at named points (a selection)
	$(PYTEST) tests/chaos -v --capture=no $(CORE)

browser: setup ## The dashboard in Chromium (apt-get install -y chromium), over real jobs that are killed
	$(PYTEST) tests/browser -v --capture=no

screenshots: setup ## Pictures of the dashboard's pages, made anew in docs/img
	PYTHONPATH=tests $(BIN)/python tests/browser/screenshots.py docs/img

chaos-full: setup ## The same at every point, twenty races, fifty kills (about an hour)
	$(PYTEST) tests/chaos -v --capture=no --every-point
	$(BIN)/clonos demo --example all --kills 50 --no-plain --json

containers: setup ## Contracts, core integration, the platform by compose; in containers, needs a Docker engine
	$(PYTEST) tests/contracts tests/integration tests/containers -v --kafka container --core

containers-full: containers ## The same, and broker failures, which `make chaos` has with embedded brokers
	$(PYTEST) tests/chaos/test_broker_failures.py -v --kafka container

image-kafka: .venv/.prepared ## Build the image of Kafka that the tests run, unless it is there; print its name
	@$(BIN)/python docker/kafka/build.py

images: .venv/.installed ## Build the images of docker/compose.yaml that are not there; their names go to build/compose.env
	@mkdir -p build && $(BIN)/python docker/images.py >build/compose.env.new && mv build/compose.env.new build/compose.env

compose: images ## Start the platform in containers: API on https://127.0.0.1:8484; see docker/README.md
	@$(COMPOSE) --env-file build/compose.env up --detach --no-build --wait

compose-down: .venv/.installed ## End it; with its data
	@$(COMPOSE) --profile '*' down --volumes

lint: .venv/.installed ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.installed ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## Benchmarks (one JSON object each)
	$(BIN)/python -m bench

lock: .venv/.installed ## Resolve the dependencies anew
	$(BIN)/uv pip compile pyproject.toml --extra formats --extra api --extra lineage --extra traces --group dev --universal --python-version 3.11 --generate-hashes \
		--no-header --no-emit-index-url --no-annotate --upgrade --quiet --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra formats --extra api --extra lineage --extra traces --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --no-annotate --quiet --constraint requirements.lock --output-file docker/requirements.lock

clean: ## Remove the environment and caches of the tools
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
