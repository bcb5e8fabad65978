# Everything happens in .venv, which is made on first use and installed anew when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all bench docs lint clean

demo: $(VENV)/.run-installed  ## fits a table of concrete mixtures, beside baselines, and draws demo.png
	$(BIN)/mercer fit examples/data/concrete.csv --target strength --model demo.mercer
	$(BIN)/mercer show demo.mercer --plot demo.png

test: $(VENV)/.run-installed  ## the tests, without the slow ones
	$(BIN)/python -m pytest

test-all: $(VENV)/.run-installed  ## the slow tests, too
	$(BIN)/python -m pytest -m ''

bench: $(VENV)/.run-installed  ## mercer beside its peers (benchmarks/setup_peers.py installs them)
	$(BIN)/python benchmarks/harness.py
	$(BIN)/python benchmarks/front_door.py

docs: $(VENV)/.dev-installed  ## the documentation, into site/
	$(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.lint-installed  ## style, types, and who imports whom
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) site dist demo.png demo.mercer .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.peers/*' -prune -exec rm -rf {} +

$(VENV)/.run-installed: pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	touch $@

$(VENV)/.lint-installed: pyproject.toml constraints.txt
	$(INSTALL) -e '.[test,lint]'
	touch $@

$(VENV)/.dev-installed: pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $@
