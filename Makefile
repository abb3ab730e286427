# Every target creates .venv when it is missing and refreshes it when pyproject.toml has changed.
# Only Python 3.11 or newer, make and a C compiler are needed.  Use another interpreter with: make PYTHON=python3.12 …

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Arguments passed on, e.g.  make run ARGS="--port 7500"   make test ARGS="tests/unit -k config"
ARGS ?=
SEEDS ?= 1000
START ?= 0

.DEFAULT_GOAL := help
.PHONY: help venv run test check fmt proto bench demo clean sim chaos

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## Create or refresh .venv

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { echo "Creating $(VENV) …"; "$(PYTHON)" -m venv $(VENV); }
	@echo "Installing holdfast and its dependencies into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server,local,dev]'
	@touch $@

run: $(STAMP)  ## Start a development server (gRPC on 7400, ops HTTP on 7403)
	@exec $(BIN)/holdfast dev $(ARGS)

test: $(STAMP)  ## Run the whole test suite
	@$(BIN)/python -m pytest -n 3 --dist loadfile $(ARGS)

check: $(STAMP)  ## Format, lint, types, import contracts, generated code
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/protogen.py --verify

fmt: $(STAMP)  ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

proto: $(STAMP)  ## Regenerate the protobuf code
	@$(BIN)/python tools/protogen.py

sim: $(STAMP)  ## Simulate replicas under faults: make sim SEEDS=1000 START=0
	@$(BIN)/python tools/simulate.py --seeds $(SEEDS) --start $(START)

chaos: $(STAMP)  ## Break real brokers under load, judge the history: make chaos ARGS="--fault mix"
	@PYTHONPATH=jepsen-style $(BIN)/python -m chaos.run $(ARGS)

bench: $(STAMP)  ## Run the benchmarks
	@$(BIN)/python benchmarks/run.py $(ARGS)

demo: $(STAMP)  ## Kill a worker and the server amid 10,000 tasks, and account for every one (about 30 s)
	@$(BIN)/python -m examples.demo $(ARGS)

clean:  ## Remove caches, build output and .venv; never a data directory
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
