# One command each: set up, check, test, lint.  PYTHON and VENV may be overridden.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: setup check test lint clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fast,develop]"
	touch $@

check: setup
	$(BIN)/gradoracle check sdpa

test: setup
	$(BIN)/pytest -n auto tests properties

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info
