# Requires only make and Python 3.11 or newer. The targets create .venv and install the packages that pyproject.toml lists.
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>&- && echo $$p && break; done)
BIN := .venv/bin
# four workers also on 2 cores, because tests wait for disks, servers and processes
# without tests/interop, which `make interop` runs: each worker would import torch, scikit-learn and datasets to collect it
SPREAD := --numprocesses=4 --dist=worksteal --ignore=tests/interop
PORTABLE := $(CURDIR)/tests/portable

help:   ## list the targets
	@grep -hE '^[a-z]+:.* ## ' $(MAKEFILE_LIST) | sed 's/:.* ## /: /'
demo: .venv/installed  ## pack 500 photographs over HTTP, inspect, verify, unpack and compare them (up to two minutes)
	@$(BIN)/python docs/demo.py demo
test: .venv/dev  ## run the unit tests, which use only the loopback network interface
	$(BIN)/pytest $(SPREAD)
	PYTHONPATH=$(PORTABLE) $(BIN)/pytest $(SPREAD) tests/commands/packing/test_run.py tests/commands/verifying/test_command.py tests/read/test_dataset.py
properties: .venv/dev  ## run the property tests with all examples; `make test` runs a quarter of the examples
	PROPERTY_EXAMPLES=all $(BIN)/pytest $(SPREAD) -m hypothesis
changes: .venv/dev  ## run the tests of changed datasets with 200 random changes and 400 appends (30 minutes)
	FLARE_TEST_CHANGES=200 $(BIN)/pytest $(SPREAD) tests/commands/test_changes.py tests/write/test_version_interleavings.py tests/storage/cloud/test_changes_in_buckets.py
portable: .venv/dev  ## run all unit tests without the names that Python's modules have only on Linux, as on macOS
	PYTHONPATH=$(PORTABLE) $(BIN)/pytest $(SPREAD)
windows: .venv/dev  ## run the tests for Windows without the names that Python's modules lack on Windows
	PYTHONPATH=$(CURDIR)/tests/windows $(BIN)/pytest -p no:xdist -m windows
interop: .venv/interop  ## install the original libraries and training frameworks (2 GB), and run the tests that use them
	@mkdir -p .venv/peers
	$(BIN)/python tests/interop/environments.py .venv/peers > .venv/peers/names
	env $$(cat .venv/peers/names) $(BIN)/pytest tests/interop
originals: .venv/dev  ## run the originals' own test suites against flarecli.compat; ORIGINAL_TESTS=FOLDER contains their checkouts
	env $$(cat .venv/peers/names 2>/dev/null) $(BIN)/python tests/interop/original_suites.py
check: lint types test  ## run lint, types and test, which every change must pass
lint: .venv/dev  ## run ruff, without changing files
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
types: .venv/dev  ## run mypy --strict on the package
	$(BIN)/mypy
platforms: .venv/dev  ## run mypy --strict on the package, for macOS and for Windows
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
docs: .venv/docs  ## build the docs site in build/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --builder html docs build/docs
reference: .venv/dev  ## write the pages and man pages that are generated from the code
	$(BIN)/python docs/option_tables.py > docs/options.md
	$(BIN)/python docs/api_page.py > docs/api.md
	$(BIN)/python docs/man_pages.py
figures: .venv/dev  ## run the benchmarks of all claims about speed, and write docs/figures.md; run `make interop` first
	env $$(cat .venv/peers/names) $(BIN)/python benchmarks/run.py
pictures: .venv/dev  ## draw the pictures of the docs; requires Chromium
	$(BIN)/python docs/pictures.py docs/pictures --page
dist: .venv/dev  ## build the wheel and the source package in dist/; REPOSITORY=URL adds links to the metadata
	$(BIN)/python packaging/dist.py
installs: .venv/dev  ## install the wheel of `make dist` in a new environment of each Python on the PATH, and with the lowest versions of the dependencies
	$(BIN)/python packaging/installs.py --extras --floors
prose: .venv/dev  ## print 100 random docstrings, messages and sentences, to review the English; SEED=N selects others
	@$(BIN)/python tests/prose.py $(or $(SEED),1)
bench: .venv/installed  ## measure start-up time, speed and memory; benchmarks/README.md describes variables such as PEER_PYTHON
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/pack_text.py
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/memory.py

.venv/bin/python:
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is required: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@
.venv/interop: .venv/dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[interop]' 'torch==2.13.*'
	@touch $@
.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@
.venv/dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: help demo test properties portable windows interop originals check lint types platforms docs reference pictures dist installs prose bench figures
