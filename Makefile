# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.
# Each target installs what it needs first: into .venv, or what is heavy (torch, scvi-tools, scanpy, jax)
# into .venv-bench.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test lint types format bench test-heavy experiments-quick clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

demo: $(VENV)/.cli,report ## simulate, refine, score, and draw a picture: demo-output/
	$(BIN)/scbatchprox demo --out demo-output

test: $(VENV)/.test ## run the tests
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8

lint: $(VENV)/.lint ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.lint ## check types
	$(BIN)/mypy

format: $(VENV)/.lint ## put the code in style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH)/.done ## speed and memory as ratios, against harmonypy and torch
	$(BENCH)/bin/python -m benchmarks

test-heavy: $(BENCH)/.done ## the tests that need torch, scvi-tools, scanpy, scib-metrics, rdkit or harmonypy
	$(BENCH)/bin/python -m pytest -q -n auto --maxprocesses 8 -m "torch or bench or scvi"

experiments-quick: $(BENCH)/.done ## every experiment of the paper, small, end to end: bench-output/
	$(BENCH)/bin/scbatchprox bench --all --quick --out bench-output

clean: ## remove environments, caches and output
	rm -rf $(VENV) $(BENCH) demo-output bench-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made $(BENCH)/.made: %/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Expected Python 3.11 or newer, found $$($(PYTHON) --version); set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $*
	@touch $@

$(VENV)/.cli,report $(VENV)/.test $(VENV)/.lint: $(VENV)/.%: pyproject.toml | $(VENV)/.made
	$(BIN)/python $(PIP) -e '.[$*]'
	@touch $@

# torch first and alone: whatever asks for it later finds the CPU build in place.
$(BENCH)/.done: pyproject.toml | $(BENCH)/.made
	$(BENCH)/bin/python $(PIP) torch==2.13.0
	$(BENCH)/bin/python $(PIP) -e '.[test,bench,scvi]'
	@touch $@
