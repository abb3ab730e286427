# Every target creates .venv when it is missing and adds what it needs: `make run` what running needs, the others also what
# developers need, both in exactly the versions of requirements/, which `make lock` writes.
# Only Python 3.11 or newer, make and a C compiler are needed.  Use another interpreter with: make PYTHON=python3.12 …

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# pysyncobj comes as source only: what builds it, and this project, is installed before.
INSTALL := $(PIP) install --require-hashes --only-binary :all: --no-binary pysyncobj --no-build-isolation
# When what running needs was installed, and what developers need.
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
# What `make bench-peers` needs: the clients and servers of other brokers stay out of the environment of developers.
PEERS_VENV := .venv-peers
PEERS_BIN := $(PEERS_VENV)/bin
PEERS := $(PEERS_VENV)/.installed
PEERS_INSTALL := $(PEERS_BIN)/python -m pip --quiet --disable-pip-version-check
# Arguments passed on, e.g.  make run ARGS="--port 7500"   make test ARGS="tests/unit -k config"
ARGS ?=
SEEDS ?= 1000
# Many tests wait more than they work, so there are more processes than cores. In the order of the folders: those with
# servers first, because the short ones fill the end better.
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder
START ?= 0

.DEFAULT_GOAL := help
.PHONY: help venv run test test-long check fmt proto lock render bench bench-peers performance demo demo-cluster clean sim chaos moves

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(DEV)  ## Create or refresh .venv with all that developers need

$(BIN)/python:
	@echo "Creating $(VENV) …"
	@"$(PYTHON)" -m venv $(VENV)

# `holdfast` was the name of this distribution once, and is that of another program.
$(RUN): pyproject.toml requirements/build.txt requirements/run.txt | $(BIN)/python
	@echo "Installing what running needs into $(VENV) …"
	@$(PIP) --quiet --quiet uninstall --yes holdfast
	@$(INSTALL) --requirement requirements/build.txt
	@$(INSTALL) --requirement requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	@echo "Installing what developers need into $(VENV) …"
	@$(INSTALL) --requirement requirements/dev.txt
	@touch $@

run: $(RUN)  ## Start a development server (gRPC on 7400, ops HTTP on 7403)
	@exec $(BIN)/holdfast dev $(ARGS)

test: $(DEV)  ## Run the whole test suite
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-long: $(DEV)  ## The same, with what takes longer (about 20 minutes)
	@LONG=1 PLACES=all $(BIN)/python -m pytest $(WORKERS) $(ARGS)

check: $(DEV)  ## Format, lint, types, import contracts, generated code, locked versions
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/protogen.py --verify
	@$(BIN)/python tools/lock.py --verify

fmt: $(DEV)  ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

proto: $(DEV)  ## Regenerate the protobuf code
	@$(BIN)/python tools/protogen.py

lock: | $(BIN)/python  ## Write requirements/ anew after a change of pyproject.toml; newest of everything: ARGS=--upgrade
	@$(INSTALL) --requirement requirements/lock.txt
	@$(BIN)/python tools/lock.py $(ARGS)

render: $(DEV)  ## Render deploy/k8s with kubectl and check the outcome
	@$(BIN)/python -m tools.manifests render

sim: $(DEV)  ## Simulate replicas under faults: make sim SEEDS=1000 START=0
	@$(BIN)/python tools/simulate.py --seeds $(SEEDS) --start $(START)

chaos: $(DEV)  ## Break real brokers under load, judge the history: make chaos ARGS="--fault mix"
	@PYTHONPATH=jepsen-style $(BIN)/python -m chaos.run $(ARGS)

moves: $(DEV)  ## Move replicas while each participant dies at every step of it (about 10 minutes)
	@PLACES=all $(BIN)/python -m pytest tests/integration/test_moves.py $(ARGS)

bench: $(DEV)  ## Run the benchmarks
	@$(BIN)/python benchmarks/run.py $(ARGS)

# All that is needed is in the file: pip must not look for the extras that some of it names.
$(PEERS): pyproject.toml requirements/build.txt requirements/peers.txt
	@echo "Installing Holdfast and the clients of its peers into $(PEERS_VENV) …"
	@"$(PYTHON)" -m venv $(PEERS_VENV)
	@$(PEERS_INSTALL) install --require-hashes --only-binary :all: --requirement requirements/build.txt
	@$(PEERS_INSTALL) install --require-hashes --only-binary :all: --no-binary pysyncobj --no-build-isolation \
		--no-deps --requirement requirements/peers.txt
	@$(PEERS_INSTALL) install --no-deps --no-build-isolation --editable .
	@touch $@

bench-peers: $(PEERS)  ## Compare with other brokers in one run: make bench-peers ARGS="--only holdfast-1,postgres --quick"
	@$(PEERS_BIN)/python benchmarks/compare.py $(ARGS)

performance: $(DEV) $(PEERS)  ## Measure all that docs/performance.md shows and write its tables
	@$(BIN)/python benchmarks/performance.py --measure --peers-python $(PEERS_BIN)/python $(ARGS)

demo: $(RUN)  ## Kill a worker and the server amid 10,000 tasks, and account for every one (about 30 s)
	@$(BIN)/python -m examples.demo $(ARGS)

demo-cluster: $(RUN)  ## Kill a leader, empty a node and add one in a cluster under load, lose nothing (about 90 s)
	@$(BIN)/python -m examples.demo_cluster $(ARGS)

clean:  ## Remove caches, build output and the environments; never a data directory
	rm -rf $(VENV) $(PEERS_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
