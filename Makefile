# Works on a bare Debian or Ubuntu with git, make, python3 and python3-venv; what else is missing is installed and named.
# The scripts behind the targets are in .ci/. Another Python: make PYTHON=python3.13 setup

PYTHON ?= python3
# How many tests run at a time, and anything else for pytest: make test PYTEST_ARGS="-k node"
TEST_WORKERS ?= 2
PYTEST_ARGS ?=

python := .venv/bin/python
installed := .venv/.installed
interop := tests/interop/node_modules/.package-lock.json
pytest := $(python) -m pytest -n $(TEST_WORKERS) --dist worksteal

.PHONY: help setup demo test test-fast check bench lock clean

help:
	@echo "make setup      .venv with everything, and the system packages that it needs"
	@echo "make demo       an event log, a gateway and feeds full of real events on 127.0.0.1:8080"
	@echo "make test       all tests;  make test-fast  those that are quick (under two minutes)"
	@echo "make check      format, lint, types, import direction, no machine's own paths"
	@echo "make bench      benchmarks, each against its rival in the same run"
	@echo "make lock       new lock files from pyproject.toml;  make clean  removes what the targets made"

setup: $(installed)

$(installed): pyproject.toml .ci/setup .ci/system-packages $(wildcard .locks/*.txt) snapshots/jars.txt
	@.ci/setup $(PYTHON)
	@touch $@

$(interop): $(installed) tests/interop/package-lock.json
	@.ci/interop
	@touch $@

demo: setup
	@.ci/system-packages curl
	@.ci/system-packages java
	@$(python) -m tests.demo

test: setup $(interop)
	@.ci/system-packages test
	$(pytest) $(PYTEST_ARGS)

test-fast: setup $(interop)
	@.ci/system-packages test
	$(pytest) -m "not slow" $(PYTEST_ARGS)

check: setup
	@.ci/check

bench: setup
	@.ci/system-packages bench
	$(python) -m tests.bench

lock:
	@.ci/lock $(PYTHON)

clean:
	rm -rf .venv build *.egg-info tests/interop/node_modules
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find gateway snapshots tests -name __pycache__ -type d -prune -exec rm -rf {} +
