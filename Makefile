# One command each: set up, check, test, lint.  PYTHON and VENV may be overridden.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: setup check test lint campaign calibration clean

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

# Ten thousand cases each of the shipped kernel and of PyTorch's fused and eager SDPA: no false alarm. Hours on 2 cores;
# ARGS="--shard 1/4" for one machine of four, ARGS="--seconds 600" to cut each of the three (docs/calibration.md).
CASES ?= 10000
ARGS ?=
CAMPAIGN = --examples $(CASES) --property '*_matches_the_oracle' $(ARGS)
campaign: setup
	$(BIN)/gradoracle check sdpa $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_sdpa.py:fused --family sdpa $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_sdpa.py:eager --family sdpa $(CAMPAIGN) \
	    --contract bfloat16=eager-bf16 --contract float16=eager-fp16

calibration: setup
	$(BIN)/python benchmarks/calibration.py

clean:
	rm -rf $(VENV) build *.egg-info
