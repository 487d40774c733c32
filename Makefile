# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.
# Each target installs what it needs into .venv first; torch is only ever in .venv-compare.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPARE := .venv-compare
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test lint types format bench test-torch clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

demo: $(VENV)/.cli,report ## simulate, refine, score, and draw a picture: demo-output/
	$(BIN)/scbatchprox demo --out demo-output

test: $(VENV)/.test ## run the tests
	$(BIN)/python -m pytest -q

lint: $(VENV)/.lint ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.lint ## check types
	$(BIN)/mypy

format: $(VENV)/.lint ## put the code in style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(COMPARE)/.done ## speed and memory as ratios, against harmonypy and torch
	$(COMPARE)/bin/python -m benchmarks

test-torch: $(COMPARE)/.done ## the tests that compare with torch
	$(COMPARE)/bin/python -m pytest -q -m torch

clean: ## remove environments, caches and output
	rm -rf $(VENV) $(COMPARE) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made $(COMPARE)/.made: %/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Expected Python 3.11 or newer, found $$($(PYTHON) --version); set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $*
	@touch $@

$(VENV)/.cli,report $(VENV)/.test $(VENV)/.lint: $(VENV)/.%: pyproject.toml | $(VENV)/.made
	$(BIN)/python $(PIP) -e '.[$*]'
	@touch $@

$(COMPARE)/.done: pyproject.toml | $(COMPARE)/.made
	$(COMPARE)/bin/python $(PIP) -e '.[test,compare,torch]'
	@touch $@
