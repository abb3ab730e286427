# Every target creates .venv when it is missing and refreshes it when pyproject.toml has changed.
# Only Python 3.11 or newer, make and a C compiler are needed.  Use another interpreter with: make PYTHON=python3.12 …

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Arguments passed on, e.g.  make run ARGS="--port 7500"   make test ARGS="tests/unit -k config"
ARGS ?=
SEEDS ?= 1000
# Many tests wait more than they work, so there are more processes than cores. In the order of the folders: those with
# servers first, because the short ones fill the end better.
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder
START ?= 0

.DEFAULT_GOAL := help
.PHONY: help venv run test test-long check fmt proto render bench demo demo-cluster clean sim chaos moves

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## Create or refresh .venv

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { echo "Creating $(VENV) …"; "$(PYTHON)" -m venv $(VENV); }
	@echo "Installing holdfast and its dependencies into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server,local,dev]'
	@touch $@

run: $(STAMP)  ## Start a development server (gRPC on 7400, ops HTTP on 7403)
	@exec $(BIN)/holdfast dev $(ARGS)

test: $(STAMP)  ## Run the whole test suite
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-long: $(STAMP)  ## The same, with what takes longer (about 20 minutes)
	@LONG=1 PLACES=all $(BIN)/python -m pytest $(WORKERS) $(ARGS)

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

render: $(STAMP)  ## Render deploy/k8s with kubectl and check the outcome
	@$(BIN)/python -m tools.manifests render

sim: $(STAMP)  ## Simulate replicas under faults: make sim SEEDS=1000 START=0
	@$(BIN)/python tools/simulate.py --seeds $(SEEDS) --start $(START)

chaos: $(STAMP)  ## Break real brokers under load, judge the history: make chaos ARGS="--fault mix"
	@PYTHONPATH=jepsen-style $(BIN)/python -m chaos.run $(ARGS)

moves: $(STAMP)  ## Move replicas while each participant dies at every step of it (about 10 minutes)
	@PLACES=all $(BIN)/python -m pytest tests/integration/test_moves.py $(ARGS)

bench: $(STAMP)  ## Run the benchmarks
	@$(BIN)/python benchmarks/run.py $(ARGS)

demo: $(STAMP)  ## Kill a worker and the server amid 10,000 tasks, and account for every one (about 30 s)
	@$(BIN)/python -m examples.demo $(ARGS)

demo-cluster: $(STAMP)  ## Kill a leader, empty a node and add one in a cluster under load, lose nothing (about 90 s)
	@$(BIN)/python -m examples.demo_cluster $(ARGS)

clean:  ## Remove caches, build output and .venv; never a data directory
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
