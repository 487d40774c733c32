# On a new machine with Python 3.11+ and make, start with `make demo` and `make test`.
# Each target first installs what it needs into .venv. Large packages (torch, scvi-tools, scanpy, jax) go
# into .venv-bench.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
FLOWER := .venv-flower
DOCS := .venv-docs
PIP := -m pip install --quiet --disable-pip-version-check
# The first of these that runs. (A pyenv shim may exist without a Python behind it.)
PYTHON_3_13 ?= $(shell for python in python3.13 $(HOME)/.pyenv/versions/3.13*/bin/python; do \
  "$$python" -c 'import sys; print(sys.executable)' 2>/dev/null && break; done)

# Many tests start Python: it need not compile the package and the tests again each time.
unexport PYTHONDONTWRITEBYTECODE
# Each process begins with a part of the tests in their order, so it seldom makes again what those of a file share.
SPREAD := --dist worksteal
ALL_CORES := -n auto --maxprocesses 8 $(SPREAD)

.PHONY: help environments check-tools size demo test test-slow test-3.13 lint types format hooks bench test-heavy test-flower test-browser chromium experiments-quick docs dist fuzz fuzz-quick clean

help: ## list the targets
	@grep -E '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-18s %s\n", $$1, $$2}'

demo: $(VENV)/.report ## simulate, refine, score, and draw a picture: demo-output/
	$(BIN)/scbatchprox demo --out demo-output

# What the tests get; those that need more are skipped.
TEST_EXTRAS ?= test
test: $(VENV)/.$(TEST_EXTRAS) ## run the tests, and the examples in docstrings
	$(BIN)/python -m pytest -q $(ALL_CORES) -m "not slow" $(TEST_PATHS)

test-slow: $(VENV)/.test ## run the tests that kill, signal and lock whole processes, and the examples in README and docs
	$(BIN)/python -m pytest -q $(ALL_CORES) -m slow

# What meets other packages, of which a newer Python has newer versions. The rest is numpy.
PATHS_3_13 := $(addprefix tests/,api atlas cells evaluate interop io plots reporting upstream) src
test-3.13: ## run the tests of files, AnnData, Dask, plots and reports on Python 3.13 with scanpy, if it is installed (PYTHON_3_13=/path/to/python), in .venv-3.13
	@if [ -n "$(PYTHON_3_13)" ]; then \
	  $(MAKE) test VENV=.venv-3.13 TEST_EXTRAS=test,interop PYTHON="$(PYTHON_3_13)" TEST_PATHS="$(PATHS_3_13)"; \
	else echo "Expected Python 3.13 for a second run of the tests, found none: skipped."; fi

lint: $(VENV)/.lint ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.lint ## check types
	$(BIN)/mypy

format: $(VENV)/.lint ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(VENV)/.lint ## check style and types before each commit, with pre-commit
	$(BIN)/pre-commit install

bench: $(BENCH)/.done ## measure speed and memory, also against harmonypy and torch
	$(BENCH)/bin/python -m benchmarks

test-heavy: $(BENCH)/.done ## run the tests of memory, and those that need torch, scvi-tools, scanpy, scib-metrics, rdkit, harmonypy or mudata
	$(BENCH)/bin/python -m pytest -q $(ALL_CORES) -m "torch or bench or interop or scvi or memory"

# The demo without Flower is a part of `make test`.
FLOWER_TESTS := tests/federated/flower tests/federated/test_demo.py \
  --deselect 'tests/federated/test_demo.py::test_three_sites_equal_one_place[folder]'
test-flower: $(FLOWER)/.done ## run the tests of couriers, with processes of Flower
	$(FLOWER)/bin/python -m pytest -q -n 2 $(SPREAD) $(FLOWER_TESTS)

test-browser: $(VENV)/.browser chromium ## run the tests of reports in Chromium
	$(BIN)/python -m pytest -q -n 2 $(SPREAD) -m browser tests/reporting

chromium: ## find Chromium, or install it with apt-get, if root runs this
	@command -v chromium || command -v google-chrome || { [ "$$(id -u)" = 0 ] && command -v apt-get && \
	  apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null || \
	  { echo "Expected Chromium to open reports in, found none; on Debian: apt-get install chromium"; exit 1; }

experiments-quick: $(BENCH)/.done ## run every experiment of the paper on small data: bench-output/
	$(BENCH)/bin/python -m research --all --quick --out bench-output

check-tools: $(VENV)/.test $(VENV)/.lint $(VENV)/.dist $(VENV)/.browser $(VENV)/.report ## install what the checks of code, packages and reports need

environments: $(BENCH)/.done $(FLOWER)/.done $(DOCS)/.done ## install what the heavy tests, Flower, the site, Python 3.13 and the browser need
	@[ -z "$(PYTHON_3_13)" ] || $(MAKE) VENV=.venv-3.13 PYTHON="$(PYTHON_3_13)" .venv-3.13/.test,interop
	@$(MAKE) chromium

docs: $(DOCS)/.done ## build the site into docs/_build/html, and run its notebooks; needs no network
	$(DOCS)/bin/python -m sphinx -W --keep-going -j auto -q -d docs/_build/doctrees docs docs/_build/html

size: $(VENV)/.test ## print the size of the package, its longest functions, how many modules a call passes, and inner imports of tests
	$(BIN)/python tools/size.py

FUZZ_SECONDS ?= 600
fuzz: $(VENV)/.test ## damaged and hostile files of all kinds, and failing writes, for FUZZ_SECONDS=600; prints its seed (Linux)
	PYTHONPATH=src $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

fuzz-quick: $(VENV)/.test ## the same cases each time, at most 90 seconds (Linux)
	PYTHONPATH=src $(BIN)/python -m fuzz --seconds 90 --cases 450 --seed 0

dist: $(VENV)/.dist ## build the packages into dist/ and check them in an empty environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_dist.py dist

clean: ## remove environments, caches and output
	rm -rf $(VENV) $(VENV)-3.13 $(BENCH) $(FLOWER) $(DOCS) docs/_build docs/generated dist demo-output bench-output federated-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made $(BENCH)/.made $(FLOWER)/.made $(DOCS)/.made: %/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Expected Python 3.11 or newer, found $$($(PYTHON) --version); set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $*
	@touch $@

$(VENV)/.report $(VENV)/.test $(VENV)/.test,interop $(VENV)/.browser $(VENV)/.lint $(VENV)/.dist: $(VENV)/.%: pyproject.toml | $(VENV)/.made
	$(BIN)/python $(PIP) -e '.[$*]'
	@touch $@

# torch first: packages that need it then find the CPU build installed.
$(BENCH)/.done: pyproject.toml | $(BENCH)/.made
	$(BENCH)/bin/python $(PIP) torch==2.13.0
	$(BENCH)/bin/python $(PIP) -e '.[test,bench,scvi]'
	@touch $@

# Flower pins many packages, so it has an environment of its own.
$(FLOWER)/.done: pyproject.toml | $(FLOWER)/.made
	$(FLOWER)/bin/python $(PIP) -e '.[flower]' pytest pytest-xdist hypothesis
	@touch $@

$(DOCS)/.done: pyproject.toml | $(DOCS)/.made
	$(DOCS)/bin/python $(PIP) -e '.[docs]'
	@touch $@
