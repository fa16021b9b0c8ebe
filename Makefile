# One command each: set up, check, test, lint.  PYTHON and VENV may be overridden.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: setup check test lint campaign campaign-sdpa campaign-lse campaign-lightning campaign-semicrf calibration length shared-memory clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fast,develop,test]"
	touch $@

check: setup
	$(BIN)/gradoracle check sdpa

test: setup
	$(BIN)/pytest -n auto tests properties

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Ten thousand cases each of the shipped kernels and of right ones in PyTorch: no false alarm. Hours on 2 cores;
# ARGS="--shard 1/4" for one machine of four, ARGS="--seconds 600" to cut each line, `make campaign-lse` for one family
# (docs/calibration.md).
CASES ?= 10000
ARGS ?=
CAMPAIGN = --examples $(CASES) --property '*_matches_the_oracle' $(ARGS)
# Cases of many labels and durations, beyond the sizes that are drawn unasked, take three times as long.
STATES ?= 300
MANY_STATES = --examples $(STATES) --property '*_matches_the_oracle' $(ARGS)
EAGER = --contract bfloat16=eager-bf16 --contract float16=eager-fp16
campaign: campaign-sdpa campaign-lse campaign-lightning campaign-semicrf

campaign-sdpa: setup
	$(BIN)/gradoracle check sdpa $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_sdpa.py:fused --family sdpa $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_sdpa.py:eager --family sdpa $(CAMPAIGN) $(EAGER)

campaign-lse: setup
	$(BIN)/gradoracle check lse $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_lse.py:upcast --family lse $(CAMPAIGN)

campaign-lightning: setup
	$(BIN)/gradoracle check lightning $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_lightning.py:quadratic --family lightning $(CAMPAIGN)
	$(BIN)/gradoracle check examples/torch_lightning.py:chunked --family lightning $(CAMPAIGN) $(EAGER)

campaign-semicrf: setup
	$(BIN)/gradoracle check semicrf $(CAMPAIGN)
	$(BIN)/gradoracle check semicrf --dim C=5:24 --dim K=13:64 $(MANY_STATES)
	$(BIN)/gradoracle check examples/torch_semicrf.py:recursion --family semicrf $(CAMPAIGN)

calibration: setup
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/calibration.py --family lse
	$(BIN)/python benchmarks/calibration.py --family lightning
	$(BIN)/python benchmarks/calibration.py --family semicrf

# The semi-CRF's error in sigma against the length, T from 1 000 to 1 048 576: docs/semicrf_length.md and its plot. Minutes.
length: setup
	$(BIN)/python benchmarks/length.py

# What every shipped compilation takes of each architecture's shared memory; compiles all of them, without a GPU.
shared-memory: setup
	$(BIN)/python -m gradoracle.properties.shared_memory > docs/shared_memory.md

clean:
	rm -rf $(VENV) build *.egg-info
