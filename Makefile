# Python 3.11 or newer and make are all that must be there: the first target that needs it makes .venv and installs what pyproject.toml names.
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>&- && echo $$p && break; done)
BIN := .venv/bin
SPREAD := --numprocesses=auto --maxprocesses=4 --dist=loadfile
PORTABLE := $(CURDIR)/tests/portable

help:   ## list targets
	@grep -hE '^[a-z]+:.* ## ' $(MAKEFILE_LIST) | sed 's/:.* ## /: /'
demo: .venv/installed  ## pack 500 photographs over HTTP, look at them in every way, unpack and compare: two minutes at most
	@$(BIN)/python docs/demo.py demo
test: .venv/dev  ## unit tests: nothing but this machine is asked
	$(BIN)/pytest $(SPREAD)
	PYTHONPATH=$(PORTABLE) $(BIN)/pytest $(SPREAD) tests/verbs/test_pack.py tests/verbs/test_verify.py tests/read/test_dataset.py
portable: .venv/dev  ## all unit tests without the names of Python's modules that only Linux has, as on macOS
	PYTHONPATH=$(PORTABLE) $(BIN)/pytest $(SPREAD)
interop: .venv/interop  ## the tests beside the original libraries and those that train, which are installed for it (2 GB)
	@mkdir -p .venv/peers
	$(BIN)/python tests/interop/environments.py .venv/peers > .venv/peers/names
	env $$(cat .venv/peers/names) $(BIN)/pytest tests/interop
originals: .venv/dev  ## the originals' own test suites against flarecli.compat: ORIGINAL_TESTS=FOLDER names their checkouts
	env $$(cat .venv/peers/names 2>/dev/null) $(BIN)/python tests/interop/original_suites.py
check: lint types test  ## all that a change must pass
lint: .venv/dev  ## ruff, no changes made
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
types: .venv/dev  ## mypy --strict on the package
	$(BIN)/mypy
prose: .venv/dev  ## draw 100 docstrings, messages and sentences at random, to review the English: SEED=N
	@$(BIN)/python tests/prose.py $(or $(SEED),1)
bench: .venv/installed  ## start-up, speed and memory; PEER_PYTHON=… and others name interpreters of the originals: benchmarks/README.md
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/pack_text.py
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/memory.py

.venv/bin/python:
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@
.venv/interop: .venv/dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[interop]' 'torch==2.13.*'
	@touch $@
.venv/dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: help demo test portable interop originals check lint types prose bench
