# Set-up runs when it is needed and never twice: the stamps below.
PYTHON ?= python3
PYTEST_ARGS ?= -m "not slow"
BIN := .venv/bin
# Byte-compiling everything up front would take longer than the whole rest of the set-up.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
	--constraint constraints.txt --editable

# Tiny models run fastest on one thread per process.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test lint format

help:
	@echo "make demo    set up, run studies/quick.yaml, print the report's path"
	@echo "make test    set up, run the tests (all of them: make test PYTEST_ARGS=)"
	@echo "make lint    set up, run ruff, mypy and the import rules"
	@echo "make format  set up, let ruff rewrite what it can"

demo: .venv/demo.stamp
	$(BIN)/stepcredit compare studies/quick.yaml

test: .venv/dev.stamp
	$(BIN)/pytest -q $(PYTEST_ARGS)

lint: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(BIN)/pip:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing into .venv (about 1.4 GB, half a minute on a fast line) ..."
	@$(INSTALL) ".[report]"
	@touch $@

# The development set-up holds everything the demo needs.
.venv/dev.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing into .venv (about 1.4 GB, half a minute on a fast line) ..."
	@$(INSTALL) ".[report,dev]"
	@touch .venv/demo.stamp $@
