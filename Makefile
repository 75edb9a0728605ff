# A fresh machine needs Python >= 3.11 (with its venv module) and make; everything else goes to .venv.
# Another interpreter: make test PYTHON=python3.13. More of pytest: make test ARGS="-k postgresql".

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=
FAULTS ?= all

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test faults check bench venv clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1:/p' $(MAKEFILE_LIST) | awk -F: '{printf "  make %-7s %s\n", $$1, $$2}'

demo: $(VENV)/.demo ## Show a user's schedules at work, in a terminal, with SQLite and nothing else
	@$(BIN)/python examples/quickstart/demo.py

test: $(VENV)/.dev ## Run the suite (servers that are not installed are skipped)
	@$(BIN)/pytest -m "not long" -n $(WORKERS) --dist worksteal --session-timeout 1800 $(ARGS)

faults: $(VENV)/.dev ## Run the long tests: the fault suite on every database and broker, the model, the soak
	@DYNBEAT_FAULTS=$(FAULTS) DYNBEAT_SOAK=$${DYNBEAT_SOAK:-120} $(BIN)/pytest -m long -n $(WORKERS) --dist worksteal $(ARGS)

check: $(VENV)/.dev ## Check style, types and floors, and run the unit tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/pytest tests/unit -n $(WORKERS) $(ARGS)

bench: $(VENV)/.bench ## Run the benchmarks: all, to docs/benchmarks, or some, ARGS="lag --scale 0.1"
	@$(BIN)/python -m benchmarks $(or $(ARGS),--out docs/benchmarks)

venv: $(VENV)/.dev ## Make .venv with everything for development

clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "celery_dynbeat needs Python 3.11 or newer; this is " + sys.version.split()[0] + \
	  ". Name another one: make PYTHON=python3.13 ...")'
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# The interpreter is an order-only prerequisite: its date is that of the system's Python.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat into $(VENV) ..."
	@$(PIP) install --editable '.[examples]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat and its development tools into $(VENV) ..."
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.demo $@

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	@echo "Installing celery_dynbeat and what its benchmarks need into $(VENV) ..."
	@$(PIP) install --editable '.[bench]'
	@touch $(VENV)/.demo $(VENV)/.dev $@
