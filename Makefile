# Needs Python >= 3.11 with the venv module, and make. Everything else is installed into .venv.
# Use another interpreter: make test PYTHON=python3.13
# Pass arguments to pytest: make test ARGS="-k postgresql"

PYTHON ?= python3
# The processes of pytest-xdist: more than the cores of the CI machine. The tests with processes and
# browsers, which wait most of the time, have more.
WORKERS ?=
ARGS ?=
FAULTS ?= essential

VENV := .venv
BIN := $(VENV)/bin
XDIST = -n $(or $(WORKERS),3) --dist worksteal
test-rest: XDIST = -n $(or $(WORKERS),5) --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Without cached bytecode, each process of pytest rewrites all tests, and each beat and worker that a
# test starts compiles the package. Images of containers often set this variable.
unexport PYTHONDONTWRITEBYTECODE

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo demo-ui check test test-rest test-all docs site bench bench-gate

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1:/p' $(MAKEFILE_LIST) | awk -F: '{printf "  make %-12s %s\n", $$1, $$2}'

venv: $(VENV)/.dev ## Create .venv with all development tools

demo: $(VENV)/.demo ## Run the quickstart example in this terminal; it needs no server
	@$(BIN)/python examples/quickstart/demo.py

demo-ui: $(VENV)/.ui ## Show the schedule pages of Flower with sample schedules; it needs no server
	@$(BIN)/python examples/flower/demo.py

check: $(VENV)/.dev ## Check style, spelling, types and imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/codespell
	@$(BIN)/mypy
	@for example in fastapi flower incident kubernetes load quickstart several-hosts sharding; do \
	  MYPYPATH=examples/$$example:examples $(BIN)/mypy examples/$$example || exit; done
	@MYPYPATH=examples/django $(BIN)/mypy examples/django
	@$(BIN)/lint-imports --no-cache --no-logo

test: $(VENV)/.dev ## Run the tests of a contributor: units, SQLite, PostgreSQL, one beat, worker and browser
	@$(BIN)/pytest -m "not full and not long" $(XDIST) --session-timeout 3000 $(ARGS)

test-rest: $(VENV)/.dev ## Run what `make test` leaves out: each database and broker, one test of each fault
	@DYNBEAT_FAULTS=$(FAULTS) DYNBEAT_SOAK=$${DYNBEAT_SOAK:-120} $(BIN)/pytest \
	  -m "full or long" --ignore tests/unit $(XDIST) --session-timeout 5000 $(ARGS)

test-all: test test-rest ## Run all tests; FAULTS=all also repeats each fault on each database and broker

docs: $(VENV)/.dev ## Write the generated pages and parts of pages, and api/async_calls.pyi
	@$(BIN)/python docs/generate_commands.py
	@$(BIN)/python docs/generate_fields.py
	@$(BIN)/python docs/generate_signals.py
	@$(BIN)/python docs/generate_switch_pages.py
	@$(BIN)/python docs/generate_async_calls.py

# The doctrees are outside the site: it is published as it is.
site: $(VENV)/.site ## Build the documentation as a site in build/site; a warning is an error
	@$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/site
	@echo "build/site/index.html"

bench: $(VENV)/.bench ## Run all benchmarks and write docs/benchmarks, or run some with ARGS="lag --scale 0.1"
	@$(BIN)/python -m benchmarks $(or $(ARGS),--out docs/benchmarks)

bench-gate: $(VENV)/.dev ## Fail if a run, a task or a start costs more than recorded; ARGS=--record records it
	@$(BIN)/python -m benchmarks.gate $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "celery_dynbeat needs Python 3.11 or newer; this is " + sys.version.split()[0] + \
	  ". Choose another one: make PYTHON=python3.13 ...")'
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# Order-only prerequisite: .venv/bin/python is a link, and make compares the date of its target.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat into $(VENV) ..."
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.ui: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat and Flower into $(VENV) ..."
	@$(PIP) install --editable '.[flower]'
	@touch $(VENV)/.demo $@

# pip 25.1: --group.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat and its development tools into $(VENV) ..."
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable '.[all]' --group dev
	@touch $(VENV)/.demo $(VENV)/.ui $@

$(VENV)/.site: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat and the tools of its site into $(VENV) ..."
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable '.[all]' --group dev --group site
	@touch $(VENV)/.demo $(VENV)/.ui $(VENV)/.dev $@

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat and its benchmark tools into $(VENV) ..."
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable '.[all]' --group bench
	@touch $(VENV)/.demo $(VENV)/.ui $(VENV)/.dev $@
